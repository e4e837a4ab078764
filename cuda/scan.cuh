// scan.cuh - prefix sums over the threads of a block.
#pragma once

#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {

/// The sum of `value` over the lower lanes.
template <class T>
__device__ __forceinline__ T warp_exclusive_scan(T value) {
  T sum = value;
#pragma unroll
  for (int delta = 1; delta < kWarp; delta *= 2) {
    const T below = __shfl_up_sync(kFullMask, sum, static_cast<unsigned>(delta));
    if (lane_id() >= delta) sum += below;
  }
  return sum - value;
}

/// The sum of `value` over the lower threads of a one-dimensional block, and over all in *total.
/// All threads must call; `scratch` is shared memory of 32 elements, free again after the call.
template <class T>
__device__ T block_exclusive_scan(T value, T* scratch, T* total) {
  const T within = warp_exclusive_scan(value);
  if (lane_id() == kWarp - 1) scratch[warp_id()] = within + value;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const T sums = lane_id() < warps ? scratch[lane_id()] : T(0);
  const T before = warp_exclusive_scan(sums);
  *total = __shfl_sync(kFullMask, before + sums, kWarp - 1);
  const T mine = __shfl_sync(kFullMask, before, warp_id());
  __syncthreads();  // scratch may be written again at once
  return mine + within;
}

}  // namespace tarn::cuda
