// matmul_dispatch.h - a matrix product on raw memory by the fastest engine there is.
#pragma once

#include "tarn/core/cpu/matmul_call.h"

namespace tarn::cpu {

/// Any dtype but bool. Floating types run in tarn's own gemm, but for bf16 where the processor
/// multiplies it faster than f32: there oneDNN does. Integers run in plain loops, with alpha = 1
/// and wrap-around. Any size may be 0.
void matmul(const MatmulCall& call);

}  // namespace tarn::cpu
