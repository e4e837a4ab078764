// gemm.h - tarn's own matrix product in every floating type.
//
// Blocked for the caches over the microkernel of micro_gemm.h; the same bits at any thread count
// (long sums are cut by shape, never by threads). Small products run in the caller without packing
// or threads, from 0.1 us up.
#pragma once

#include "tarn/core/cpu/matmul_call.h"

namespace tarn::cpu {

/// call.dtype is kF64, kF32, kBF16 or kF16; halves are widened as they are packed, summed in f32
/// and rounded once. Temporary memory: 1 to 3 MiB per thread, and up to 16 copies of C when C is
/// small and k long.
void gemm(const MatmulCall& call);

}  // namespace tarn::cpu
