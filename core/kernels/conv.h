// conv.h - slots for two-dimensional convolution.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

struct Conv2dOptions {
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_h = 0, pad_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;
};

/// All activations are channels_last-dense 4-d tensors of logical sizes NCHW, weights are dense
/// [K, C/groups, R, S] in row-major order, biases [K]. One floating dtype; halves accumulate in
/// f32. Any size may be 0 except C and the kernel's; sums over nothing give 0.
struct ConvKernels {
  /// y [N, K, OH, OW] = conv(x [N, C, H, W], weight) + bias; bias may be undefined.
  void (*forward)(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const Conv2dOptions& options, const Tensor& y, Stream stream) = nullptr;
  /// gx [N, C, H, W] = gradient with respect to x.
  void (*backward_data)(const Tensor& gy, const Tensor& weight, const Conv2dOptions& options,
                        const Tensor& gx, Stream stream) = nullptr;
  /// gw = gradient with respect to weight; gb = that of bias, unless undefined.
  void (*backward_weight)(const Tensor& x, const Tensor& gy, const Conv2dOptions& options,
                          const Tensor& gw, const Tensor& gb, Stream stream) = nullptr;
};

}  // namespace tarn
