// long_walk.cuh - offsets of strided operands for index spaces of any size.
//
// As StridedWalk, with 64-bit offsets: for kernels whose threads find an offset once per output or
// per row, where the wider arithmetic costs nothing, so that nothing need be cut on the host.
#pragma once

#include "tarn/cuda/offsets.cuh"

namespace tarn::cuda {

/// Offsets, in elements, of N operands in one index space; dimension 0 is the fastest. Sizes are
/// divided by as StridedWalk does below 2^31 positions, and through f64 above.
template <int N>
struct LongWalk {
  int ndim = 0;
  bool narrow = true;  ///< fewer than 2^31 positions
  FastDivisor divisors[kMaxDims];
  double inverses[kMaxDims];  ///< 1 / size
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims][N];

  /// `strides_of[i]` points to operand i's strides, one per dimension; sizes are at least 1.
  LongWalk(int n, const int64_t* sizes_in, const int64_t* const (&strides_of)[N]) : ndim(n) {
    int64_t positions = 1;
    for (int d = 0; d < n; ++d) positions *= sizes_in[d];
    narrow = positions < (int64_t{1} << 31);
    for (int d = 0; d < n; ++d) {
      sizes[d] = sizes_in[d];
      inverses[d] = 1.0 / static_cast<double>(sizes[d]);
      if (narrow) divisors[d] = FastDivisor(static_cast<uint32_t>(sizes_in[d]));
      for (int i = 0; i < N; ++i) strides[d][i] = strides_of[i][d];
    }
  }

  // The loops stay rolled: merged index spaces have one or two dimensions.
  __device__ __forceinline__ void offsets(int64_t position, int64_t (&out)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = 0;
#pragma unroll 1
    for (int d = 0; d < ndim; ++d) {
      int64_t index = position;  // the slowest dimension needs no division
      if (d + 1 < ndim) {
        const int64_t next = quotient(position, d);
        index -= next * sizes[d];
        position = next;
      }
#pragma unroll
      for (int i = 0; i < N; ++i) out[i] += index * strides[d][i];
    }
  }

 private:
  __device__ __forceinline__ int64_t quotient(int64_t position, int d) const {
    if (narrow) return divisors[d].divide(static_cast<uint32_t>(position));
    // Off by at most one below 2^50.
    const int64_t size = sizes[d];
    const int64_t q = static_cast<int64_t>(static_cast<double>(position) * inverses[d]);
    const int64_t rest = position - q * size;
    return rest < 0 ? q - 1 : rest >= size ? q + 1 : q;
  }
};

}  // namespace tarn::cuda
