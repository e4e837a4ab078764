// matmul_dispatch.h - a matrix product on raw memory by the fastest engine there is.
#pragma once

#include "tarn/core/cpu/matmul_call.h"

namespace tarn::cpu {

/// Any dtype but bool. Small f32 products and all of f64 run in tarn's own gemm; large f32 and all
/// bf16 in oneDNN; f16 (and what the library does not take) in f32; integers in plain loops, with
/// alpha = 1 and wrap-around. Any size may be 0.
void matmul(const MatmulCall& call);

}  // namespace tarn::cpu
