// dnnl_matmul.h - matrix products of bf16 by oneDNN.
#pragma once

#include "tarn/core/cpu/matmul_call.h"

namespace tarn::cpu {

/// Computes the product, or returns false if the library is absent or has no fast implementation
/// for it (nothing is written then). call.dtype is kBF16; no size is 0. Results may differ in the
/// last bits between thread counts.
bool dnnl_matmul(const MatmulCall& call);

/// What the library makes of bf16 on this processor, beside our own kernels that widen it to f32.
enum class Bf16Products {
  kNoGain,  // no dot products of bf16; or Intel's, at half the FLOP/s of its f32 multiply-adds
            // (measured on Emerald Rapids: 83 against 165 GFLOP/s a core)
  kDots,    // twice the rate of f32 (AVX-512 on AMD)
  kTiles,   // AMX
};
Bf16Products dnnl_bf16_products();

}  // namespace tarn::cpu
