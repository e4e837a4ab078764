// dnnl_conv.h - convolution by oneDNN on NHWC activations, fp32 and bf16.
#pragma once

#include "tarn/core/cpu/conv_shape.h"
#include "tarn/core/dtype.h"

namespace tarn::cpu {

enum class ConvPass : uint8_t { kForward, kBackwardData, kBackwardWeights };

/// Computes one pass, or returns false if the library is absent or has no fast implementation for
/// this shape and type (nothing is written then). x, w, y are, by pass:
///   forward           x, weights -> y (+ bias, or null)
///   backward data     gx <- weights, gy
///   backward weights  x, gw <- gy
/// Weights are plain [K, C/groups, KH, KW]; no size is 0. dtype is kF32 or kBF16. Results may
/// differ in the last bits between thread counts.
bool dnnl_conv(ConvPass pass, const Conv2dShape& s, DType dtype, void* x, void* w, const void* bias,
               void* y);

}  // namespace tarn::cpu
