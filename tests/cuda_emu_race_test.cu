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

// The last block to arrive adds up what the others have written.
__global__ void last_block(float* parts, unsigned* arrived, float* out) {
  parts[blockIdx.x] = 1;
  __threadfence();
  if (atomicAdd(arrived, 1u) != gridDim.x - 1) return;
  __threadfence();
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

TEST(EmuRace, kernels_with_barriers_and_fences_are_clean) {
  const DeviceArray<float> out(64), parts(8);
  const DeviceArray<unsigned> arrived(std::vector<unsigned>{0});
  for (int i = 0; i < 3; ++i) run(7, 128, block_sum, out.get());
  EXPECT_EQ(out.values()[6], 8128.0f);  // 0 + ... + 127
  run(1, 64, neighbours, out.get(), true);
  run(1, 32, within_a_warp, out.get(), true);
  run(8, 1, last_block, parts.get(), arrived.get(), out.get());
  EXPECT_EQ(out.values()[0], 8.0f);
}

TEST(EmuRaceDeathTest, races_within_a_block_and_between_blocks_are_reported) {
  EXPECT_EXIT(
      {
        const DeviceArray<float> out(64);
        run(1, 64, neighbours, out.get(), false);
        std::exit(0);
      },
      testing::ExitedWithCode(kRaceExitCode), "data race.*neighbours");
  EXPECT_EXIT(
      {
        const DeviceArray<float> out(64);
        run(1, 32, within_a_warp, out.get(), false);
        std::exit(0);
      },
      testing::ExitedWithCode(kRaceExitCode), "data race");
  EXPECT_EXIT(
      {
        const DeviceArray<float> out(64);
        run(2, 1, same_place, out.get());
        std::exit(0);
      },
      testing::ExitedWithCode(kRaceExitCode), "data race");
}

}  // namespace
#endif
