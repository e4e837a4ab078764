// places.cuh - from positions in row-major order to coordinates and offsets, at any size.
//
// Below 2^31 positions a division is a multiplication and a shift; above, 64-bit division. Which of
// them is the same for all threads, so the branch costs nothing.
#pragma once

#include "tarn/core/tensor.h"
#include "tarn/cuda/offsets.cuh"

namespace tarn::cuda {

/// Division by a constant of numbers below `limit`.
struct Splitter {
  uint64_t divisor = 1;
  FastDivisor fast;
  bool wide = false;

  Splitter() = default;
  Splitter(int64_t d, int64_t limit)
      : divisor(static_cast<uint64_t>(d)), wide(limit > INT32_MAX || d > INT32_MAX) {
    if (!wide) fast = FastDivisor(static_cast<uint32_t>(d));
  }
  /// n / divisor, and *rest = n % divisor.
  __device__ __forceinline__ int64_t split(int64_t n, int64_t* rest) const {
    const int64_t quotient = wide ? static_cast<int64_t>(static_cast<uint64_t>(n) / divisor)
                                  : static_cast<int64_t>(fast.divide(static_cast<uint32_t>(n)));
    *rest = n - quotient * static_cast<int64_t>(divisor);
    return quotient;
  }
};

/// Row-major positions of `sizes` as offsets, in elements, of a tensor with `strides`.
struct Places {
  int ndim = 0;
  Splitter sizes[kMaxDims];  ///< innermost first
  int64_t strides[kMaxDims];

  Places() = default;
  Places(const Shape& shape, const Shape& stride) {
    const int64_t limit = shape.numel();
    int64_t lengths[kMaxDims];
    for (int d = shape.dim() - 1; d >= 0; --d) {
      if (shape[d] == 1) continue;
      const bool joins = ndim > 0 && stride[d] == strides[ndim - 1] * lengths[ndim - 1];
      if (joins) {
        lengths[ndim - 1] *= shape[d];
      } else {
        lengths[ndim] = shape[d];
        strides[ndim++] = stride[d];
      }
    }
    for (int d = 0; d < ndim; ++d) sizes[d] = Splitter(lengths[d], limit);
  }
  __device__ __forceinline__ int64_t offset(int64_t position) const {
    int64_t at = 0;
#pragma unroll 1
    for (int d = 0; d < ndim; ++d) {
      int64_t coordinate = position;
      if (d + 1 < ndim) {
        position = sizes[d].split(position, &coordinate);
      }
      at += coordinate * strides[d];
    }
    return at;
  }
};

}  // namespace tarn::cuda
