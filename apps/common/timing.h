// timing.h - how times are measured: medians of several loops.
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <utility>
#include <vector>

namespace tarn::apps {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Median seconds of one call: `samples` loops that last about `seconds` together, after warm-up.
/// `finish` waits for what a loop has queued on a device.
template <std::invocable F, std::invocable W>
double time_call(F&& call, W&& finish, double seconds = 0.15, int samples = 7) {
  call();
  finish();
  double start = now_s();
  call();
  finish();
  const double once = std::max(now_s() - start, 1e-8);
  const double wanted = seconds / samples / once;
  const int loops = static_cast<int>(std::clamp(wanted, 1.0, 1e6));
  std::vector<double> times;
  for (int s = 0; s < samples; ++s) {
    start = now_s();
    for (int i = 0; i < loops; ++i) call();
    finish();
    times.push_back((now_s() - start) / loops);
  }
  return median(std::move(times));
}

template <std::invocable F>
double time_call(F&& call, double seconds = 0.15, int samples = 7) {
  return time_call(
      std::forward<F>(call), [] {}, seconds, samples);
}

}  // namespace tarn::apps
