// winograd.h - 3x3 convolutions in fp32 by Winograd's minimal filtering, on NHWC activations.
//
// Stride 1 takes a quarter of the multiplications of the direct sum at a relative error near 1e-6;
// stride 2 takes 56 % of them at the error of the direct sum. All three passes give the same bits
// at any thread count. Temporary memory: under 3 MiB per thread, plus the transformed filters (4x
// the weights) where many tiles share them.
#pragma once

#include "tarn/core/cpu/conv_shape.h"

namespace tarn::cpu {

/// Whether the three functions below take this shape: 3x3 kernel, dilation 1, one group, at least
/// 16 input and output channels, and stride 1 with padding 0..2 or stride 2 with padding 1.
bool winograd_applies(const Conv2dShape& s);

/// y[N, OH, OW, K] = conv(x[N, H, W, C], w[K, C, 3, 3]) + bias[K] (bias may be null).
void winograd_forward(const Conv2dShape& s, const float* x, const float* w, const float* bias,
                      float* y);

/// gx[N, H, W, C] from gy[N, OH, OW, K].
void winograd_backward_data(const Conv2dShape& s, const float* gy, const float* w, float* gx);

/// gw[K, C, 3, 3] from x and gy.
void winograd_backward_weights(const Conv2dShape& s, const float* x, const float* gy, float* gw);

}  // namespace tarn::cpu
