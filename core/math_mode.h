// math_mode.h - how exactly GPUs multiply.
#pragma once

namespace tarn {

/// Whether f32 matrix products and convolutions on GPUs may round their inputs to TF32 (10 bits of
/// mantissa instead of 23, sums in f32): several times faster, relative errors around 1e-3. Off by
/// default; as PyTorch's torch.backends.cuda.matmul.allow_tf32 and cudnn.allow_tf32 in one. Other
/// types, other operations and the CPU are not affected.
/// Thread safety: process-wide; a call that is under way in another thread may see either value.
void set_allow_tf32(bool allow);
bool allow_tf32();

}  // namespace tarn
