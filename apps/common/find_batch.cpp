// find_batch.cpp - trying batch sizes against a memory limit.
#include "tarn/apps/common/find_batch.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "tarn/apps/common/text.h"
#include "tarn/core/allocator.h"
#include "tarn/core/backend.h"
#include "tarn/core/error.h"
#include "tarn/core/memory_report.h"

namespace tarn::apps {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

/// A number after `key` in a file of the system; 0 if there is none ("max").
double number_in(const char* path, const std::string& key = "") {
  std::ifstream in(path);
  double value = 0;
  for (std::string word; in >> word;) {
    if (!key.empty() && word != key) continue;
    if (!key.empty()) in >> word;
    const char* begin = word.c_str();
    char* end = nullptr;
    value = std::strtod(begin, &end);
    return end == begin ? 0 : value;
  }
  return 0;
}

/// Bytes this host can give to the process, by the kernel's estimate and the control group's limit.
double spare_host_memory() {
  double spare = number_in("/proc/meminfo", "MemAvailable:") * 1024;
  const double limit = number_in("/sys/fs/cgroup/memory.max");
  if (limit > 0) {
    const double left = limit - number_in("/sys/fs/cgroup/memory.current");
    spare = spare > 0 ? std::min(spare, left) : left;
  }
  return std::max(spare, 0.0);
}

size_t budget(const MemorySettings& s, Device device) {
  if (s.limit_gib > 0) return static_cast<size_t>(s.limit_gib * kGiB);
  if (!device.is_cpu()) return 0;  // the device says when it is full
  const double reserved = static_cast<double>(memory_stats(device).reserved);
  return static_cast<size_t>(0.9 * spare_host_memory() + reserved);
}

/// What the search changes, put back at its end.
class Restore {
 public:
  Restore(const MemorySettings& s, Device device) : settings_(s), device_(device) {
    set_memory_limit(budget(s, device), device);
  }
  ~Restore() {
    apply_memory_limit(settings_, device_);
    empty_cache(device_);
    reset_peak_memory(device_);
  }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  MemorySettings settings_;
  Device device_;
};

}  // namespace

void declare_memory_flags(Options& options, MemorySettings& s) {
  options.group("Memory");
  options.add("--find-batch", &s.find_batch,
              "find the largest --batch-size that fits, in a few trial steps that leave no trace, "
              "and train with it");
  options
      .add("--memory-limit", &s.limit_gib,
           "memory that tensors may take, also for --find-batch; 0: what there is")
      .at_least(0)
      .value_name("GIB");
  options.add("--offload-activations", &s.offload,
              "on a GPU: keep what backward needs in the host's memory meanwhile");
}

void check_find_batch(const MemorySettings& settings, const Ranks& ranks) {
  if (!settings.find_batch || ranks.size() == 1) return;
  throw UsageError(
      "--find-batch searches in one process; run it alone with this rank's share of "
      "the memory, and pass --batch-size");
}

void apply_memory_limit(const MemorySettings& s, Device device) {
  set_memory_limit(static_cast<size_t>(s.limit_gib * kGiB), device);
}

int64_t find_largest(int64_t most, const std::function<bool(int64_t)>& fits) {
  int64_t good = 0, bad = most + 1;
  for (int64_t n = 1; n < bad; n *= 2) {
    if (!fits(n)) {
      bad = n;
      break;
    }
    good = n;
  }
  while (bad - good > std::max<int64_t>(1, good / 32)) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

int64_t find_batch(const MemorySettings& settings, Device device, int64_t most, bool quiet,
                   const std::function<void(int64_t)>& try_batch) {
  const Restore restore(settings, device);
  std::string last_error;
  const auto fits = [&](int64_t n) {
    empty_cache(device);
    reset_peak_memory(device);
    bool good = true;
    try {
      try_batch(n);
      synchronize(device);
    } catch (const OutOfMemoryError& error) {
      good = false;
      last_error = error.what();
    }
    if (!quiet) {
      std::printf(
          "batch %lld: %s\n", static_cast<long long>(n),
          good ? ("fits, " + detail::format_bytes(memory_stats(device).peak_reserved)).c_str()
               : "does not fit");
      std::fflush(stdout);
    }
    return good;
  };
  const int64_t found = find_largest(most, fits);
  TARN_CHECK_AS(OutOfMemoryError, found > 0,
                "not even a batch of 1 fits; take a smaller model or --grad-checkpoint",
                settings.limit_gib > 0 ? ", or raise --memory-limit: " : ": ", last_error);
  return found;
}

int run_or_advise(const MemorySettings& settings, Device device, int64_t batch,
                  const std::function<int()>& train,
                  const std::function<int64_t(int64_t most)>& find) {
  std::string error;
  try {
    return train();
  } catch (const OutOfMemoryError& e) {
    error = e.what();  // what holds the memory is freed when this block ends
  }
  if (batch == 1) detail::fail<OutOfMemoryError>(error);
  std::printf("out of memory; looking for a batch that fits ...\n");
  const int64_t fits = find(batch - 1);
  detail::fail<OutOfMemoryError>(
      "--batch-size ", batch, " does not fit into ",
      settings.limit_gib > 0 ? format("--memory-limit %g", settings.limit_gib)
                             : "the memory of " + device.str(),
      "; --batch-size ", fits, " would (with --grad-checkpoint perhaps more)",
      settings.limit_gib > 0 ? "; or raise --memory-limit. " : ". ", error);
}

}  // namespace tarn::apps
