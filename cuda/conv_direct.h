// conv_direct.h - the parts of our own convolution that conv.cu is put together from.
#pragma once

#include "tarn/cuda/conv_shape.h"

namespace tarn::cuda {

// conv_direct.cu: one thread per result, for groups with few channels (depthwise above all).
void conv_direct_forward(const ConvShape& p, const Tensor& x, const Tensor& weight,
                         const Tensor& bias, const Tensor& y, Stream stream);
void conv_direct_backward_data(const ConvShape& p, const Tensor& gy, const Tensor& weight,
                               const Tensor& gx, Stream stream);

// conv_backward.cu
void conv_backward_weight(const Tensor& x, const Tensor& gy, const Conv2dOptions& options,
                          const Tensor& gw, const Tensor& gb, Stream stream);

}  // namespace tarn::cuda
