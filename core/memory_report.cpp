// memory_report.cpp - tables of sizes, tags and owners.
#include "tarn/core/memory_report.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>

#include "tarn/core/backend.h"
#include "tarn/core/error.h"

namespace tarn {

const char* memory_tag_name(MemoryTag tag) {
  constexpr const char* kNames[kNumMemoryTags] = {
      "other", "parameters", "gradients", "optimizer", "activations", "communication", "workspace"};
  return kNames[static_cast<int>(tag)];
}

namespace detail {
namespace {

constexpr size_t kOwnersShown = 8;

void print_tags(std::ostream& out, const MemoryStats& stats) {
  out << "  " << std::left << std::setw(24) << "by tag" << std::right << std::setw(12) << "now"
      << std::setw(12) << "at peak"
      << "\n";
  const auto row = [&](const char* name, int64_t now, int64_t peak) {
    out << "    " << std::left << std::setw(22) << name << std::right << std::setw(12)
        << format_bytes(now) << std::setw(12) << format_bytes(peak) << "\n";
  };
  // Threads hand over their counts of small blocks now and then: at a peak, blocks of one thread
  // may have been given back or tagged anew by another whose counts were not there yet.
  int64_t told = 0;
  for (int i = 0; i < kNumMemoryTags; ++i) {
    const int64_t now = std::max<int64_t>(0, stats.by_tag[i]);
    const int64_t peak = std::max<int64_t>(0, stats.peak_by_tag[i]);
    told += peak;
    if (now > 0 || peak > 0) row(memory_tag_name(static_cast<MemoryTag>(i)), now, peak);
  }
  if (stats.peak_allocated > told) row("(small, short-lived)", 0, stats.peak_allocated - told);
}

/// Small blocks carry no owner: they would cost more to track than to hand out.
void print_owners(std::ostream& out, const MemoryStats& stats, std::vector<MemoryOwner> owners) {
  int64_t known = 0;
  for (const MemoryOwner& owner : owners) known += owner.bytes;
  out << "  " << std::left << std::setw(24) << "biggest owners" << std::right << std::setw(12)
      << "bytes" << std::setw(12) << "blocks"
      << "\n";
  const size_t shown = std::min(kOwnersShown, owners.size());
  for (size_t i = 0; i < shown; ++i) {
    out << "    " << std::left << std::setw(22) << owners[i].op << std::right << std::setw(12)
        << format_bytes(owners[i].bytes) << std::setw(12) << owners[i].blocks << "\n";
  }
  int64_t others = 0, blocks = 0;
  for (size_t i = shown; i < owners.size(); ++i) {
    others += owners[i].bytes;
    blocks += owners[i].blocks;
  }
  if (blocks > 0) {
    out << "    " << std::left << std::setw(22) << "(other operations)" << std::right
        << std::setw(12) << format_bytes(others) << std::setw(12) << blocks << "\n";
  }
  if (stats.allocated > known) {
    out << "    " << std::left << std::setw(22) << "(blocks up to 64 KiB)" << std::right
        << std::setw(12) << format_bytes(stats.allocated - known) << "\n";
  }
}

std::string advice(size_t bytes, const MemoryStats& stats, BlockPool& pool) {
  const auto cached = static_cast<size_t>(std::max<int64_t>(0, stats.reserved - stats.allocated));
  const size_t limit = pool.limit();
  if (limit != 0 && bytes > limit) {
    return "the request alone exceeds the limit: raise it with set_memory_limit()";
  }
  if (cached >= bytes) {
    return "the free memory is in pieces (the largest is " +
           format_bytes(static_cast<int64_t>(pool.largest_free())) +
           "): allocate the biggest tensors first, or keep their sizes constant";
  }
  std::string text =
      "use a smaller batch, or evaluate under NoGradGuard so that no activations "
      "are kept";
  if (limit != 0) text += ", or raise the limit with set_memory_limit()";
  return text;
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 6) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  const int digits = unit == 0 ? 0 : std::abs(value) < 10 ? 2 : std::abs(value) < 100 ? 1 : 0;
  std::snprintf(text, sizeof text, "%.*f %s", digits, value, kUnits[unit]);
  return text;
}

std::string describe_memory(Device device, BlockPool& pool, const LedgerDelta& pending) {
  const MemoryStats s = pool.stats(pending);
  std::ostringstream out;
  const auto row = [&](const char* name, int64_t now, int64_t peak) {
    out << "  " << std::left << std::setw(24) << name << std::right << std::setw(12)
        << format_bytes(now) << std::setw(12) << format_bytes(peak) << "\n";
  };
  out << "memory of " << device << "\n";
  out << "  " << std::left << std::setw(24) << "" << std::right << std::setw(12) << "now"
      << std::setw(12) << "peak"
      << "\n";
  row("allocated", s.allocated, s.peak_allocated);
  row("reserved", s.reserved, s.peak_reserved);
  if (const size_t limit = pool.limit()) {
    out << "  " << std::left << std::setw(24) << "limit" << std::right << std::setw(12)
        << format_bytes(static_cast<int64_t>(limit)) << "\n";
  }
  out << "  " << s.allocations << " allocations, " << s.system_calls
      << " of them from the system\n";
  print_tags(out, s);
  print_owners(out, s, pool.owners());
  return out.str();
}

void fail_out_of_memory(size_t bytes, Device device, BlockPool& pool, const LedgerDelta& pending) {
  const MemoryStats s = pool.stats(pending);
  std::ostringstream out;
  if (current_op) out << current_op << ": ";
  out << "out of memory on " << device << "; asked for "
      << format_bytes(static_cast<int64_t>(std::min(bytes, size_t{INT64_MAX}))) << " with "
      << format_bytes(s.allocated) << " allocated and " << format_bytes(s.reserved) << " reserved";
  if (const size_t limit = pool.limit()) {
    out << ", limit " << format_bytes(static_cast<int64_t>(limit));
  } else if (const size_t total = backend(device.type).info(device.index).total_memory) {
    out << ", the device has " << format_bytes(static_cast<int64_t>(total));
  }
  out << "; " << advice(bytes, s, pool) << "\n";
  if (s.peak_allocated > 0) {  // else the very first request was too big: empty tables
    print_tags(out, s);
    print_owners(out, s, pool.owners());
  }
  std::string text = out.str();
  text.pop_back();  // whoever shows a message ends its line
  throw OutOfMemoryError(text);
}

}  // namespace detail
}  // namespace tarn
