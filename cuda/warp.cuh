// warp.cuh - reductions over a warp and a block, in an order that is always the same.
//
// A warp reduces by a butterfly of shuffles (5 steps, every lane ends with the result), a block by
// one value per warp in shared memory. All threads of the block must call, with full warps: block
// sizes are multiples of 32. Every combination is associative only up to rounding, so the order is
// part of the contract: equal inputs give equal bits on every run.
#pragma once

#include <cstdint>
#include <cstring>

#include "tarn/cuda/rt.h"

namespace tarn::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullMask = 0xFFFFFFFFu;

__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x % kWarp);
}
__device__ __forceinline__ int warp_id() {
  return static_cast<int>(threadIdx.x / kWarp);
}

/// The value of lane (own lane xor mask); T is trivially copyable, of a multiple of 4 bytes. All of
/// `members` call.
template <class T>
__device__ __forceinline__ T shuffle_xor(const T& value, int mask, unsigned members = kFullMask) {
  static_assert(sizeof(T) % 4 == 0);
  if constexpr (std::is_arithmetic_v<T>) {
    return __shfl_xor_sync(members, value, mask);
  } else {
    T out;
    int words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int& word : words) word = __shfl_xor_sync(members, word, mask);
    memcpy(&out, words, sizeof(T));
    return out;
  }
}

/// combine over the 32 lanes, in every lane. combine(a, b) must commute to the bit.
template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T value, Combine combine) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    value = combine(value, shuffle_xor(value, mask));
  }
  return value;
}

/// The same over this thread's group of `lanes` neighbours, a power of two; other groups of the
/// warp need not call.
template <class T, class Combine>
__device__ __forceinline__ T group_reduce(T value, int lanes, Combine combine) {
  const unsigned members = kFullMask >> (kWarp - lanes) << (lane_id() / lanes * lanes);
#pragma unroll 1
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    value = combine(value, shuffle_xor(value, mask, members));
  }
  return value;
}

/// combine over all threads of a one-dimensional block, in every thread. `identity` fills up the
/// last step; `scratch` is shared memory of 32 elements, free again after the call.
template <class T, class Combine>
__device__ T block_reduce(T value, T identity, T* scratch, Combine combine) {
  value = warp_reduce(value, combine);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) return value;
  if (lane_id() == 0) scratch[warp_id()] = value;
  __syncthreads();
  value = lane_id() < warps ? scratch[lane_id()] : identity;
  value = warp_reduce(value, combine);
  __syncthreads();  // scratch may be written again at once
  return value;
}

struct Sum {
  template <class T>
  __device__ T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
/// The larger value; NaN if either is.
struct Max {
  template <class T>
  __device__ T operator()(const T& a, const T& b) const {
    return a > b || a != a ? a : b;
  }
};

}  // namespace tarn::cuda
