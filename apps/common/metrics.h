// metrics.h - running values of a training loop, and the line torchvision's trainer prints of them.
//
//   MetricLogger log;
//   log.add("lr", MeterStyle::kValue);
//   for (int64_t i = 0; i < steps; ++i) {
//     ...fetch a batch...                 log.data_ready();
//     ...step...                          log.update("loss", loss, batch); log.step_done(batch);
//     if (i % print_freq == 0) print(log.line("Epoch: [0]", i, steps));
//   }
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tarn::apps {

/// A series of values: the last few for a smoothed view, and the mean of all of them.
class SmoothedValue {
 public:
  explicit SmoothedValue(int64_t window = 20) : window_(window) {}
  /// Adds a value that stands for n samples (n weighs the global mean).
  void update(double value, int64_t n = 1);

  /// Of the last `window` values; the lower of the two middle ones, as torch.median.
  double median() const;
  double mean() const;
  double max() const;
  /// Of all values, weighted by their samples.
  double global_mean() const;
  /// The last value; 0 if there is none.
  double value() const { return recent_.empty() ? 0 : recent_.back(); }
  int64_t count() const { return count_; }

 private:
  int64_t window_, count_ = 0;
  double total_ = 0;
  std::deque<double> recent_;
};

/// How a meter prints.
enum class MeterStyle {
  kSmoothed,  // "6.9123 (6.9401)": median and global mean
  kPercent,   // "0.00 (0.31)"
  kValue,     // "0.1": the last value, to six digits
  kRate,      // "812.4": the mean of the last few values
};

class MetricLogger {
 public:
  MetricLogger();

  /// Declares a meter; they print in the order they were declared or first updated.
  void add(std::string name, MeterStyle style, int64_t window = 20);
  /// Adds a value; a meter that was not declared starts as kSmoothed.
  void update(std::string_view name, double value, int64_t n = 1);
  /// The meter of this name. Throws std::out_of_range if there is none.
  const SmoothedValue& operator[](std::string_view name) const;

  /// Step timing: data_ready() when the batch is there, step_done() when the step is finished. If
  /// samples is given, updates the meter "img/s" too.
  void data_ready();
  void step_done(int64_t samples = 0);
  /// Seconds since the logger was made or reset.
  double elapsed() const;
  const SmoothedValue& step_time() const { return step_time_; }
  const SmoothedValue& data_time() const { return data_time_; }

  /// "Epoch: [0]  [  10/1563]  eta: 0:02:11  lr: 0.1  img/s: 812.4  loss: 6.9123 (6.9401)  ...
  ///  time: 0.0812  data: 0.0031  max mem: 1423" (the latter in MiB: this process's peak).
  std::string line(std::string_view header, int64_t step, int64_t steps) const;
  /// The meters alone: "loss: 6.9123 (6.9401)  acc1: 0.00 (0.31)".
  std::string meters() const;

 private:
  struct Meter {
    std::string name;
    MeterStyle style;
    SmoothedValue values;
  };
  const Meter* find(std::string_view name) const;

  std::vector<Meter> meters_;
  SmoothedValue step_time_, data_time_;
  double start_, step_start_;
};

/// Largest resident set of this process so far, in MiB.
int64_t peak_memory_mib();

}  // namespace tarn::apps
