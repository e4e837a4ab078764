// anomaly.cpp - finding the operation that first produced a NaN or infinity in backward.
#include "tarn/autograd/anomaly.h"

#include <cmath>

#include "tarn/core/raw_elementwise.h"

namespace tarn {

std::string& detail::current_module_path() {
  static thread_local std::string path;
  return path;
}

namespace {

template <class Bad>
int64_t first_that(const Tensor& x, Bad&& bad) {
  if (!is_floating(x.dtype())) return -1;
  const std::vector<double> values = x.to_vector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (bad(values[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

// Row-major position to index.
Shape unravel(int64_t position, const Shape& sizes) {
  Shape index = Shape::filled(sizes.dim(), 0);
  for (int d = sizes.dim() - 1; d >= 0; --d) {
    index[d] = position % sizes[d];
    position /= sizes[d];
  }
  return index;
}

std::string place_of(const Node& node) {
  const NodeExtras* extras = node.extras_if_any();
  return extras && !extras->recorded_at.empty() ? " in " + extras->recorded_at : "";
}

}  // namespace

int64_t first_nonfinite(const Tensor& x) {
  return first_that(x, [](double v) { return !std::isfinite(v); });
}

void check_anomaly(const Node& node, Grads& grads) {
  for (int i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    const int64_t at = first_nonfinite(grads[i]);
    if (at < 0) continue;
    const double found = grads[i].to_vector<double>()[static_cast<size_t>(at)];
    const double value = std::isnan(found) ? std::fabs(found) : found;  // not "-nan"
    detail::fail<AutogradError>("anomaly: the backward of ", node.name(), place_of(node), " gave ",
                                value, " in the gradient of its input ", i, ", first at index ",
                                unravel(at, grads[i].sizes()), " of ", grads[i].describe());
  }
}

void check_anomaly_forward(const Node& node, const Tensor& output) {
  const int64_t at = first_that(output, [](double v) { return std::isnan(v); });
  if (at < 0) return;
  detail::fail<AutogradError>("anomaly: ", node.name(), place_of(node),
                              " gave nan, first at index ", unravel(at, output.sizes()), " of ",
                              output.describe());
}

}  // namespace tarn
