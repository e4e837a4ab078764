// conv_dispatch.h - the three passes of a convolution on raw memory, by the fastest engine there
// is.
//
// 3x3 layers of f32 and bf16 go to Winograd (winograd.h) where that is faster, the rest to oneDNN,
// f64 and what the library does not do well to im2col. f16 computes in f32, and so does bf16 where
// there is no library or its bf16 is slower.
#pragma once

#include "tarn/core/cpu/conv_shape.h"
#include "tarn/core/dtype.h"

namespace tarn::cpu {

/// Whether Winograd is used where it is faster (default: yes, unless TARN_WINOGRAD=0 is set).
/// Direct sums round a little less: relative errors of 0.5-1e-6 against 1-2.5e-6 at stride 1.
bool winograd_enabled();
void set_winograd_enabled(bool enabled);

/// y = conv(x, w) + bias. Activations dense NHWC, weights dense OIHW, bias [K] or null; one
/// floating dtype; halves accumulate in f32. Any size may be 0 except C and the kernel's.
void conv2d_forward(const Conv2dShape& s, DType dtype, const void* x, const void* w,
                    const void* bias, void* y);
/// gx = gradient with respect to x.
void conv2d_backward_data(const Conv2dShape& s, DType dtype, const void* gy, const void* w,
                          void* gx);
/// gw, and gb unless null = gradients with respect to weights and bias.
void conv2d_backward_weights(const Conv2dShape& s, DType dtype, const void* x, const void* gy,
                             void* gw, void* gb);

}  // namespace tarn::cpu
