// dnnl_matmul.h - matrix products by oneDNN, fp32 and bf16.
#pragma once

#include "tarn/core/cpu/matmul_call.h"

namespace tarn::cpu {

/// Computes the product, or returns false if the library is absent or has no fast implementation
/// for it (nothing is written then). call.dtype is kF32 or kBF16; no size is 0. Results may differ
/// in the last bits between thread counts.
bool dnnl_matmul(const MatmulCall& call);

}  // namespace tarn::cpu
