// op_times.h - adds up the time spent in every operation while it lives.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tarn/core/profiler.h"

namespace tarn::bench {

/// Listens to OpScope. Self time: without the operations inside. For one thread.
class OpTimes final : public OpListener {
 public:
  OpTimes();
  ~OpTimes() override;
  void begin(const char* op) override;
  void end(const char* op) override;
  /// A table by self time, per step.
  void print(int64_t steps) const;

 private:
  struct Total {
    double self_s = 0, total_s = 0;
    int64_t calls = 0;
  };
  struct Open {
    double start, inner;
  };
  std::map<std::string, Total> totals_;
  std::vector<Open> open_;
  OpListener* previous_;
};

}  // namespace tarn::bench
