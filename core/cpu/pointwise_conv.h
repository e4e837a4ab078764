// pointwise_conv.h - 1x1 convolutions as matrix products over pixels.
#pragma once

#include "tarn/core/cpu/conv_shape.h"
#include "tarn/core/dtype.h"

namespace tarn::cpu {

/// Whether the functions below take this shape: 1x1 kernel, no padding, one group, any stride.
bool pointwise_applies(const Conv2dShape& s);

/// f32 or bf16; no size is 0. With a stride, the pixels in use pass through a temporary copy.
void pointwise_forward(const Conv2dShape& s, DType dtype, const void* x, const void* w,
                       const void* bias, void* y);
void pointwise_backward_data(const Conv2dShape& s, DType dtype, const void* gy, const void* w,
                             void* gx);
void pointwise_backward_weights(const Conv2dShape& s, DType dtype, const void* x, const void* gy,
                                void* gw);

}  // namespace tarn::cpu
