// winograd.h - 3x3 convolutions of f32 and bf16 by Winograd's minimal filtering, on NHWC
// activations.
//
// Stride 1 takes a quarter of the multiplications of the direct sum at a relative error near 1e-6;
// stride 2 takes 56 % of them at the error of the direct sum. All three passes give the same bits
// at any thread count. Temporary memory: under 3 MiB per thread, plus the transformed filters (4x
// the weights) where many tiles share them.
#pragma once

#include <type_traits>

#include "tarn/core/cpu/conv_shape.h"

namespace tarn::cpu {

/// Whether the three functions below take this shape: 3x3 kernel, dilation 1, one group, at least
/// 16 input and output channels, and stride 1 with padding 0..2 or stride 2 with padding 1.
bool winograd_applies(const Conv2dShape& s);

/// y[N, OH, OW, K] = conv(x[N, H, W, C], w[K, C, 3, 3]) + bias[K] (bias may be null). T: float, or
/// bfloat16, which is computed in f32 and rounded once.
template <typename T>
void winograd_forward(const Conv2dShape& s, const T* x, const T* w,
                      const std::type_identity_t<T>* bias, T* y);

/// gx[N, H, W, C] from gy[N, OH, OW, K].
template <typename T>
void winograd_backward_data(const Conv2dShape& s, const T* gy, const T* w, T* gx);

/// gw[K, C, 3, 3] from x and gy.
template <typename T>
void winograd_backward_weights(const Conv2dShape& s, const T* x, const T* gy, T* gw);

}  // namespace tarn::cpu
