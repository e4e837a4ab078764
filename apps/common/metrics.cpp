// metrics.cpp - running values of a training loop, and the line torchvision's trainer prints.
#include "tarn/apps/common/metrics.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include <sys/resource.h>

#include "tarn/apps/common/text.h"
#include "tarn/apps/common/timing.h"

namespace tarn::apps {
namespace {

std::string meter_text(MeterStyle style, const SmoothedValue& v) {
  switch (style) {
    case MeterStyle::kSmoothed:
      return format("%.4f (%.4f)", v.median(), v.global_mean());
    case MeterStyle::kPercent:
      return format("%.2f (%.2f)", v.median(), v.global_mean());
    case MeterStyle::kValue:
      return format("%.6g", v.value());  // a schedule's 0.004 may be 0.0040000000000000036
    case MeterStyle::kRate:
      return format("%.1f", v.mean());
  }
  return "";
}

}  // namespace

void SmoothedValue::update(double value, int64_t n) {
  recent_.push_back(value);
  if (static_cast<int64_t>(recent_.size()) > window_) recent_.pop_front();
  count_ += n;
  total_ += value * static_cast<double>(n);
}

double SmoothedValue::median() const {
  if (recent_.empty()) return 0;
  std::vector<double> sorted(recent_.begin(), recent_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

double SmoothedValue::mean() const {
  if (recent_.empty()) return 0;
  return std::accumulate(recent_.begin(), recent_.end(), 0.0) / static_cast<double>(recent_.size());
}

double SmoothedValue::max() const {
  return recent_.empty() ? 0 : *std::max_element(recent_.begin(), recent_.end());
}

double SmoothedValue::global_mean() const {
  return count_ > 0 ? total_ / static_cast<double>(count_) : 0;
}

MetricLogger::MetricLogger() : start_(now_s()), step_start_(start_) {}

const MetricLogger::Meter* MetricLogger::find(std::string_view name) const {
  for (const Meter& meter : meters_) {
    if (meter.name == name) return &meter;
  }
  return nullptr;
}

void MetricLogger::add(std::string name, MeterStyle style, int64_t window) {
  if (!find(name)) meters_.push_back({std::move(name), style, SmoothedValue(window)});
}

void MetricLogger::update(std::string_view name, double value, int64_t n) {
  if (!find(name)) add(std::string(name), MeterStyle::kSmoothed);
  const_cast<Meter*>(find(name))->values.update(value, n);
}

const SmoothedValue& MetricLogger::operator[](std::string_view name) const {
  if (const Meter* meter = find(name)) return meter->values;
  throw std::out_of_range("no meter '" + std::string(name) + "'");
}

void MetricLogger::data_ready() {
  data_time_.update(now_s() - step_start_);
}

void MetricLogger::step_done(int64_t samples) {
  const double end = now_s(), seconds = end - step_start_;
  step_time_.update(seconds);
  step_start_ = end;
  if (samples > 0 && seconds > 0) {
    add("img/s", MeterStyle::kRate, 10);
    update("img/s", static_cast<double>(samples) / seconds);
  }
}

double MetricLogger::elapsed() const {
  return now_s() - start_;
}

std::string MetricLogger::meters() const {
  std::string text;
  for (const Meter& meter : meters_) {
    text += (text.empty() ? "" : "  ") + meter.name + ": " + meter_text(meter.style, meter.values);
  }
  return text;
}

std::string MetricLogger::line(std::string_view header, int64_t step, int64_t steps) const {
  const std::string total = std::to_string(steps), at = std::to_string(step);
  const std::string pad(total.size() > at.size() ? total.size() - at.size() : 0, ' ');
  const double eta = step_time_.global_mean() * static_cast<double>(steps - step);
  std::string text = std::string(header) + "  [" + pad + at + "/" + total + "]  eta: ";
  text += timedelta_text(eta);
  if (!meters_.empty()) text += "  " + meters();
  text += format("  time: %.4f  data: %.4f", step_time_.mean(), data_time_.mean());
  return text + "  max mem: " + std::to_string(peak_memory_mib());
}

int64_t peak_memory_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;  // Linux counts in KiB
}

}  // namespace tarn::apps
