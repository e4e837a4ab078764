// cuda_emu_race_test.cu - with ThreadSanitizer, races in kernels are reported and nothing else is.
#if defined(__SANITIZE_THREAD__)
#include "tarn/cuda/warp.cuh"
#include "tarn/tests/cuda_emu_tools.h"

namespace {

using namespace tarn::emu_test;

constexpr int kRaceExitCode = 66;  // of ThreadSanitizer

__global__ void block_sum(float* out) {
  __shared__ float scratch[32];
  const float sum =
      tarn::cuda::block_reduce(static_cast<float>(threadIdx.x), 0.0f, scratch, tarn::cuda::Sum());
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

__global__ void neighbours(float* out, bool with_barrier) {
  __shared__ float tile[64];
  tile[threadIdx.x] = 1;
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = tile[63 - threadIdx.x];
}

__global__ void same_place(float* out) {
  out[0] = static_cast<float>(blockIdx.x);
}

__global__ void within_a_warp(float* out, bool with_barrier) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1;
  if (with_barrier) __syncwarp();
  out[threadIdx.x] = tile[31 - threadIdx.x];
}

__global__ void count_up(unsigned* count, bool atomically) {
  if (atomically) {
    atomicAdd(count, 1u);
  } else {
    *count += 1;
  }
}

// The last block to arrive adds up what the others have written.
__global__ void last_block(float* parts, unsigned* arrived, float* out, bool with_fence) {
  parts[blockIdx.x] = 1;
  if (with_fence) __threadfence();
  if (atomicAdd(arrived, 1u) != gridDim.x - 1) return;
  if (with_fence) __threadfence();
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += parts[i];
  *out = sum;
}

template <class... P, class... A>
void run(dim3 grid, dim3 block, void (*kernel)(P...), A... arguments) {
  const auto config = shape(grid, block);
  EXPECT_CUDA(cudaLaunchKernelEx(&config, kernel, arguments...));
  EXPECT_CUDA(cudaDeviceSynchronize());
}

TEST(EmuRace, kernels_with_barriers_atomics_and_fences_are_clean) {
  const DeviceArray<float> out(64), parts(8);
  const DeviceArray<unsigned> arrived(std::vector<unsigned>{0}), count(std::vector<unsigned>{0});
  for (int i = 0; i < 3; ++i) run(7, 128, block_sum, out.get());
  EXPECT_EQ(out.values()[6], 8128.0f);  // 0 + ... + 127
  run(1, 64, neighbours, out.get(), true);
  run(1, 32, within_a_warp, out.get(), true);
  run(8, 1, last_block, parts.get(), arrived.get(), out.get(), true);
  EXPECT_EQ(out.values()[0], 8.0f);
  run(4, 64, count_up, count.get(), true);
  EXPECT_EQ(count.values()[0], 256u);
}

/// Expects that ThreadSanitizer ends the process that launches the kernel.
template <class... P, class... A>
void expect_race(dim3 grid, dim3 block, void (*kernel)(P...), A... arguments) {
  EXPECT_EXIT((run(grid, block, kernel, arguments...), std::exit(0)),
              testing::ExitedWithCode(kRaceExitCode), "data race");
}

TEST(EmuRaceDeathTest, a_missing_barrier_is_a_race) {
  const DeviceArray<float> out(64);
  EXPECT_EXIT((run(1, 64, neighbours, out.get(), false), std::exit(0)),
              testing::ExitedWithCode(kRaceExitCode), "data race[^$]*neighbours");
  expect_race(1, 32, within_a_warp, out.get(), false);
}

TEST(EmuRaceDeathTest, a_write_of_two_blocks_to_one_place_is_a_race) {
  const DeviceArray<float> out(1);
  expect_race(2, 1, same_place, out.get());
}

TEST(EmuRaceDeathTest, an_update_without_an_atomic_is_a_race_in_a_block_and_between_blocks) {
  const DeviceArray<unsigned> count(std::vector<unsigned>{0});
  expect_race(1, 2, count_up, count.get(), false);
  expect_race(2, 1, count_up, count.get(), false);
}

TEST(EmuRaceDeathTest, an_atomic_without_a_fence_orders_nothing) {
  const DeviceArray<float> out(1), parts(8);
  const DeviceArray<unsigned> arrived(std::vector<unsigned>{0});
  expect_race(8, 1, last_block, parts.get(), arrived.get(), out.get(), false);
}

}  // namespace
#endif
