// raw_conv.h - tarn::raw: two-dimensional convolution and its two gradients, unrecorded.
#pragma once

#include "tarn/core/kernels/conv.h"
#include "tarn/core/tensor.h"

namespace tarn::raw {

/// x [N, C, H, W], weight [K, C/groups, R, S], bias [K] or undefined -> [N, K, OH, OW] in
/// channels_last, OH = floor((H + 2 pad - dilation (R - 1) - 1) / stride) + 1.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options);
/// Gradient with respect to x, of sizes x_sizes, from gy and weight.
Tensor conv2d_backward_data(const Tensor& gy, const Tensor& weight, const Shape& x_sizes,
                            const Conv2dOptions& options);
/// Gradients with respect to weight (of sizes w_sizes) and, if with_bias, bias.
std::pair<Tensor, Tensor> conv2d_backward_weight(const Tensor& x, const Tensor& gy,
                                                 const Shape& w_sizes, const Conv2dOptions& options,
                                                 bool with_bias);
/// Throws ValueError, in the words of op, on numbers that no convolution has.
void check_conv_options(const char* op, const Conv2dOptions& options);
/// Sizes of the result; throws the errors of conv2d in the caller's terms.
Shape conv2d_sizes(const char* op, const Shape& x, const Shape& weight,
                   const Conv2dOptions& options);

}  // namespace tarn::raw
