// grid.cuh - grid-stride loops: any grid gives the same result.
#pragma once

#include <cstdint>

#include "tarn/cuda/rt.h"

namespace tarn::cuda {

/// This thread's place and the step of a grid-stride loop over one dimension:
///   for (int64_t i = grid_index(); i < n; i += grid_step()) ...
__device__ inline int64_t grid_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t grid_step() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

}  // namespace tarn::cuda
