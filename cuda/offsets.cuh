// offsets.cuh - from a linear index to the offsets of strided operands, without division.
//
// Kernels index with 32 bits: a division by a size becomes a multiplication and a shift (Granlund
// and Montgomery, "Division by invariant integers using multiplication", PLDI 1994). Walks of more
// than 2^31 elements or offsets are cut into parts on the host (for_each_part in plan_parts.h).
#pragma once

#include <cstdint>

#include "tarn/core/shape.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {

/// n / divisor and n % divisor for 0 <= n < 2^31, 1 <= divisor < 2^31.
struct FastDivisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 1;
  uint32_t shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier =
        static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
};

/// Offsets, in elements, of N operands that walk one index space of `ndim` dimensions; dimension 0
/// is the fastest.
template <int N>
struct StridedWalk {
  int ndim = 1;
  FastDivisor sizes[kMaxDims];
  uint32_t strides[kMaxDims][N];

  __device__ __forceinline__ void offsets(uint32_t linear, uint32_t (&out)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = 0;
#pragma unroll
    for (int d = 0; d < kMaxDims; ++d) {
      if (d == ndim) break;
      const uint32_t next = sizes[d].divide(linear);
      const uint32_t index = linear - next * sizes[d].divisor;
      linear = next;
#pragma unroll
      for (int i = 0; i < N; ++i) out[i] += index * strides[d][i];
    }
  }
};

}  // namespace tarn::cuda
