// pool.h - slots for two-dimensional pooling.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

/// The windows of a pooling. adaptive: windows [floor(i*H/OH), ceil((i+1)*H/OH)) from the sizes of
/// x and y; every other field is then unused.
struct Pool2dOptions {
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_h = 0, pad_w = 0;
  int64_t dilation_h = 1, dilation_w = 1;  ///< max pooling only
  bool count_include_pad = true;           ///< average pooling only
  int64_t divisor_override = 0;            ///< average pooling only; 0: none
  bool adaptive = false;
};

/// x, y, gx, gy: 4-d, one floating dtype, all channels_last-dense or all row-major dense.
/// index: i32 or i64, of y's sizes and layout: position h * W + w within the plane of x.
struct PoolKernels {
  /// Maximum; NaN wins; padding counts as -inf. index[...] = position of the (first) maximum.
  void (*max_pool2d)(const Tensor& x, const Pool2dOptions& options, const Tensor& y,
                     const Tensor& index, Stream stream) = nullptr;
  /// gx = sum of gy over the windows whose maximum sits there. Overwrites gx.
  void (*max_pool2d_backward)(const Tensor& gy, const Tensor& index, const Pool2dOptions& options,
                              const Tensor& gx, Stream stream) = nullptr;
  void (*avg_pool2d)(const Tensor& x, const Pool2dOptions& options, const Tensor& y,
                     Stream stream) = nullptr;
  void (*avg_pool2d_backward)(const Tensor& gy, const Pool2dOptions& options, const Tensor& gx,
                              Stream stream) = nullptr;
};

}  // namespace tarn
