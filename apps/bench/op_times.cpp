// op_times.cpp - adds up the time spent in every operation.
#include "tarn/apps/bench/op_times.h"

#include <algorithm>
#include <cstdio>

#include "tarn/apps/bench/timing.h"

namespace tarn::bench {

OpTimes::OpTimes() : previous_(set_op_listener(this)) {}
OpTimes::~OpTimes() {
  set_op_listener(previous_);
}

void OpTimes::begin(const char*) {
  open_.push_back({now_s(), 0});
}

void OpTimes::end(const char* op) {
  const Open done = open_.back();
  open_.pop_back();
  const double total = now_s() - done.start;
  if (!open_.empty()) open_.back().inner += total;
  Total& t = totals_[op];
  t.self_s += total - done.inner;
  t.total_s += total;
  ++t.calls;
}

void OpTimes::print(int64_t steps) const {
  std::vector<std::pair<std::string, Total>> rows(totals_.begin(), totals_.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.self_s > b.second.self_s; });
  const double n = static_cast<double>(steps);
  std::printf("%-28s %12s %12s %10s\n", "operation", "self ms", "total ms", "calls");
  for (const auto& [name, t] : rows) {
    std::printf("%-28s %12.3f %12.3f %10.1f\n", name.c_str(), t.self_s * 1e3 / n,
                t.total_s * 1e3 / n, static_cast<double>(t.calls) / n);
  }
}

}  // namespace tarn::bench
