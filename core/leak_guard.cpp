// leak_guard.cpp - adding up what is made and what goes.
#include "tarn/core/leak_guard.h"

#include <algorithm>
#include <sstream>

#include "tarn/core/error.h"
#include "tarn/core/memory_report.h"

namespace tarn {

void LeakGuard::mark() {
  const std::lock_guard lock(mutex_);
  growth_.clear();
}

void LeakGuard::memory(const void* ptr, int64_t bytes, Device) {
  const std::lock_guard lock(mutex_);
  if (bytes > 0) {
    const std::string op = detail::current_op ? detail::current_op : "(no operation)";
    owner_[ptr] = op;
    growth_[op].bytes += bytes;
    ++growth_[op].blocks;
    return;
  }
  const auto found = owner_.find(ptr);
  Growth& g = growth_[found == owner_.end() ? "(before the guard)" : found->second];
  g.bytes += bytes;
  --g.blocks;
  if (found != owner_.end()) owner_.erase(found);
}

void LeakGuard::recorded(const char* op, uint64_t) {
  const std::lock_guard lock(mutex_);
  ++growth_[op].nodes;
}

void LeakGuard::forgotten(const char* op, uint64_t) {
  const std::lock_guard lock(mutex_);
  --growth_[op].nodes;
}

Growth LeakGuard::total() const {
  const std::lock_guard lock(mutex_);
  Growth sum;
  for (const auto& [op, g] : growth_) {
    sum.bytes += g.bytes;
    sum.blocks += g.blocks;
    sum.nodes += g.nodes;
  }
  return sum;
}

std::vector<Growth> LeakGuard::by_operation() const {
  std::vector<Growth> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [op, g] : growth_) {
      if (g.bytes == 0 && g.blocks == 0 && g.nodes == 0) continue;
      all.push_back(g);
      all.back().op = op;
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Growth& a, const Growth& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.nodes > b.nodes;
  });
  return all;
}

std::string LeakGuard::report() const {
  const Growth sum = total();
  if (sum.bytes <= 0 && sum.blocks <= 0 && sum.nodes <= 0) return "";
  constexpr int kShown = 8;
  std::ostringstream out;
  out << "grew by " << detail::format_bytes(sum.bytes) << " in " << sum.blocks << " blocks and by "
      << sum.nodes << " records of the tape: ";
  int shown = 0;
  for (const Growth& g : by_operation()) {
    if (g.bytes <= 0 && g.blocks <= 0 && g.nodes <= 0) continue;
    if (shown++ == kShown) {
      out << ", ...";
      break;
    }
    out << (shown > 1 ? ", " : "") << g.op << " +" << detail::format_bytes(g.bytes) << " in "
        << g.blocks << " blocks, +" << g.nodes << " records";
  }
  return out.str();
}

void LeakGuard::check(const std::string& what) const {
  const std::string text = report();
  TARN_CHECK(text.empty(), what, ": ", text,
             "; is a tensor with history kept (a loss in a list? keep its item())");
}

}  // namespace tarn
