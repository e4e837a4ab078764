// pool.cpp - pooling layers.
#include "tarn/nn/pool.h"

#include "tarn/autograd/functions_pool.h"

namespace tarn::nn {

Tensor MaxPool2d::forward(const Tensor& x) {
  const Options& o = options_;
  return max_pool2d(x, o.kernel, o.stride, o.padding, o.dilation, o.ceil_mode);
}

Tensor AvgPool2d::forward(const Tensor& x) {
  const Options& o = options_;
  return avg_pool2d(x, o.kernel, o.stride, o.padding, o.ceil_mode, o.count_include_pad);
}

Tensor AdaptiveAvgPool2d::forward(const Tensor& x) {
  return adaptive_avg_pool2d(x, options_.output);
}

}  // namespace tarn::nn
