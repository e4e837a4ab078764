// im2col_conv.h - convolution as matrix products: the general path, and the one for f64.
#pragma once

#include "tarn/core/cpu/conv_shape.h"

namespace tarn::cpu {

/// Any stride, padding, dilation and groups, NHWC activations, plain weights, T = float or double.
/// The same bits at any thread count. No size is 0. Temporary memory: the unfolded patches of a
/// part of an image (forward, backward weights: about 1 MiB; backward data: one image and group).
template <typename T>
void im2col_forward(const Conv2dShape& s, const T* x, const T* w, const T* bias, T* y);
template <typename T>
void im2col_backward_data(const Conv2dShape& s, const T* gy, const T* w, T* gx);
template <typename T>
void im2col_backward_weights(const Conv2dShape& s, const T* x, const T* gy, T* gw);

}  // namespace tarn::cpu
