// launch.h - the one place where kernels are started.
//
//   launch(kernel, blocks, threads, shared_bytes, stream, arguments...);
//
// No blocks: nothing is launched. Arguments are converted to the kernel's parameter types.
// TARN_CUDA_BLOCKING=1 waits after every launch, so that an error names the kernel it came from.
// TARN_CUDA_BLOCKS=N gives loops over a grid at most N blocks: results must not change.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "tarn/cuda/rt.h"

namespace tarn::cuda {

/// Kernels this process has started.
uint64_t launch_count();
/// True if every launch and index check waits for its result (TARN_CUDA_BLOCKING=1).
bool blocking();
/// Switches that for the whole process; returns what it was.
bool set_blocking(bool on);

namespace detail {
/// Before: selects the device, allows `shared` bytes of dynamic shared memory.
void before_launch(const void* kernel, size_t shared, int device);
/// Empties the cache of the device, which may hold what CUDA lacks: the first launch of a kernel
/// brings its code to the device.
void make_room(int device);
/// After: counts, waits if blocking(), throws on an error with the kernel's name and its grid.
void after_launch(cudaError_t code, const void* kernel, const cudaLaunchConfig_t& config,
                  Stream stream);
}  // namespace detail

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 blocks, dim3 threads, size_t shared, Stream stream,
            A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "launch: as many arguments as the kernel takes");
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  const void* const function = reinterpret_cast<const void*>(kernel);
  detail::before_launch(function, shared, stream.device.index);
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = raw_stream(stream);
  cudaError_t code = cudaLaunchKernelEx(&config, kernel, static_cast<std::decay_t<P>>(args)...);
  if (__builtin_expect(code == cudaErrorMemoryAllocation, 0)) {
    detail::make_room(stream.device.index);
    code = cudaLaunchKernelEx(&config, kernel, static_cast<std::decay_t<P>>(args)...);
  }
  detail::after_launch(code, function, config, stream);
}

constexpr int64_t ceil_div(int64_t n, int64_t d) {
  return (n + d - 1) / d;
}

/// Blocks of a grid-stride loop at most: enough to fill the device several times over, and no more.
int64_t most_blocks(Stream stream);
/// Another limit for the whole process (TARN_CUDA_BLOCKS); 0: the usual one. Returns what it was.
/// Results are the same bits at any number of blocks; with few, every loop goes round, which small
/// tensors else never do.
int64_t set_most_blocks(int64_t n);

/// Blocks for a grid-stride loop over `items`, `per_block` of them in a block and step.
inline unsigned blocks_for(int64_t items, int64_t per_block, Stream stream) {
  return static_cast<unsigned>(std::min(ceil_div(items, per_block), most_blocks(stream)));
}

}  // namespace tarn::cuda
