// cuda_emu_kernels_test.cu - kernels under the emulator: right results, planted bugs found.
#include <cmath>
#include <numeric>

#include "tarn/cuda/warp.cuh"
#include "tarn/tests/cuda_emu_tools.h"

namespace {

using namespace tarn::emu_test;

std::vector<float> ramp(std::size_t n) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), 0.0f);
  return v;
}

// ---- kernels that are right

__global__ void scale(float* out, const float* in, int64_t n, float factor) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    out[i] = in[i] * factor;
  }
}

__global__ void scale4(float* out, const float* in, float factor) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  float4 v = reinterpret_cast<const float4*>(in)[i];
  v.x *= factor;
  v.y *= factor;
  v.z *= factor;
  v.w *= factor;
  reinterpret_cast<float4*>(out)[i] = v;
}

__global__ void row_sum(float* out, const float* in, int n) {
  __shared__ float scratch[32];
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    sum += in[blockIdx.x * static_cast<unsigned>(n) + static_cast<unsigned>(i)];
  }
  sum = tarn::cuda::block_reduce(sum, 0.0f, scratch, tarn::cuda::Sum());
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <class T>
__global__ void reverse_block(T* data) {
  TARN_DYNAMIC_SHARED(T, tile);
  tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

__global__ void atomics(unsigned* counts, float* sum, double* dsum, int* extremes) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&counts[i % 4], 1u);
  atomicAdd(sum, 1.0f);
  atomicAdd(dsum, 0.5);
  atomicMax(&extremes[0], i);
  atomicMin(&extremes[1], -i);
  atomicCAS(&extremes[2], 7, 8);
}

__global__ void warp_functions(unsigned* out) {
  const unsigned lane = threadIdx.x % 32, full = 0xffffffffu;
  unsigned* mine = out + threadIdx.x * 12;
  mine[0] = __shfl_sync(full, lane * 10, 5);
  mine[1] = __shfl_up_sync(full, lane, 3);
  mine[2] = __shfl_down_sync(full, lane, 3);
  mine[3] = __shfl_xor_sync(full, lane, 16);
  mine[4] = __ballot_sync(full, lane % 2 == 0);
  mine[5] = static_cast<unsigned>(__any_sync(full, lane == 31));
  mine[6] = static_cast<unsigned>(__all_sync(full, lane < 31));
  mine[7] = __match_any_sync(full, lane / 8);
  mine[8] = __reduce_add_sync(full, lane);
  mine[9] = static_cast<unsigned>(__reduce_min_sync(full, static_cast<int>(lane) - 4));
  mine[10] = __shfl_xor_sync(full, lane, 8, 16);
  mine[11] = static_cast<unsigned>(__syncthreads_count(lane < 4));
}

__global__ void half_warps(int* out) {
  // Each half exchanges under its own mask.
  const unsigned mask = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  int v = static_cast<int>(threadIdx.x);
  for (int offset = 8; offset > 0; offset /= 2) v += __shfl_xor_sync(mask, v, offset);
  __syncwarp();
  out[threadIdx.x] = v;
}

TEST(EmuKernels, elementwise_kernels_give_the_right_values_in_every_thread_order) {
  const SettingsGuard guard;
  for (const int order : {0, 1, 2}) {
    tarn::emu::settings().order = order;
    const DeviceArray<float> in(ramp(1000)), out(1000);
    const auto config = shape(3, 64);
    EXPECT_CUDA(cudaLaunchKernelEx(&config, scale, out.get(), in.get(), 1000, 2.0f));
    for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(out.values()[i], 2.0f * static_cast<float>(i));
    const auto config4 = shape(25, 10);
    EXPECT_CUDA(cudaLaunchKernelEx(&config4, scale4, out.get(), in.get(), 3.0f));
    EXPECT_EQ(out.values()[999], 2997.0f);
  }
}

TEST(EmuKernels, barriers_and_shuffles_reduce_rows_in_every_thread_order) {
  const SettingsGuard guard;
  const DeviceArray<float> in(ramp(4 * 700)), out(4);
  for (const int order : {0, 1, 2}) {
    tarn::emu::settings().order = order;
    const auto config = shape(4, 256);
    EXPECT_CUDA(cudaLaunchKernelEx(&config, row_sum, out.get(), in.get(), 700));
    // Row r: sum of 700 numbers from 700 r on = 700 * (700 r + 349.5).
    for (std::size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(out.values()[r], 700.0f * (700.0f * static_cast<float>(r) + 349.5f));
    }
  }
}

TEST(EmuKernels, dynamic_shared_memory_is_private_to_the_block) {
  const DeviceArray<double> data({1, 2, 3, 4});
  const auto config = shape(1, 4, 4 * sizeof(double));
  EXPECT_CUDA(cudaLaunchKernelEx(&config, reverse_block<double>, data.get()));
  EXPECT_EQ(data.values(), (std::vector<double>{4, 3, 2, 1}));
}

TEST(EmuKernels, atomics_of_every_block_arrive) {
  const DeviceArray<unsigned> counts(std::vector<unsigned>(4, 0));
  const DeviceArray<float> sum(std::vector<float>{0});
  const DeviceArray<double> dsum(std::vector<double>{0});
  const DeviceArray<int> extremes(std::vector<int>{0, 0, 7});
  const auto config = shape(4, 32);
  EXPECT_CUDA(
      cudaLaunchKernelEx(&config, atomics, counts.get(), sum.get(), dsum.get(), extremes.get()));
  EXPECT_EQ(counts.values(), std::vector<unsigned>(4, 32));
  EXPECT_EQ(sum.values()[0], 128.0f);
  EXPECT_EQ(dsum.values()[0], 64.0);
  EXPECT_EQ(extremes.values(), (std::vector<int>{127, -127, 8}));
}

TEST(EmuKernels, warp_functions_follow_the_programming_guide) {
  const DeviceArray<unsigned> out(64 * 12);
  const auto config = shape(1, 64);
  EXPECT_CUDA(cudaLaunchKernelEx(&config, warp_functions, out.get()));
  const std::vector<unsigned> v = out.values();
  for (unsigned t = 0; t < 64; ++t) {
    const unsigned lane = t % 32;
    const unsigned* mine = &v[t * 12];
    EXPECT_EQ(mine[0], 50u);
    EXPECT_EQ(mine[1], lane < 3 ? lane : lane - 3);
    EXPECT_EQ(mine[2], lane > 28 ? lane : lane + 3);
    EXPECT_EQ(mine[3], lane ^ 16);
    EXPECT_EQ(mine[4], 0x55555555u);
    EXPECT_EQ(mine[5], 1u);
    EXPECT_EQ(mine[6], 0u);
    EXPECT_EQ(mine[7], 0xffu << lane / 8 * 8);
    EXPECT_EQ(mine[8], 496u);  // 0 + ... + 31
    EXPECT_EQ(static_cast<int>(mine[9]), -4);
    EXPECT_EQ(mine[10], lane ^ 8);
    EXPECT_EQ(mine[11], 8u);  // 4 in each of 2 warps
  }
}

TEST(EmuKernels, parts_of_a_warp_exchange_under_their_own_masks) {
  const DeviceArray<int> out(64);
  const auto config = shape(1, 64);
  EXPECT_CUDA(cudaLaunchKernelEx(&config, half_warps, out.get()));
  EXPECT_EQ(out.values()[0], 120);   // 0 + ... + 15
  EXPECT_EQ(out.values()[63], 888);  // 48 + ... + 63
}

// ---- kernels that are wrong

[[maybe_unused]] __global__ void missing_barrier(float* data) {
  __shared__ float tile[64];
  tile[threadIdx.x] = data[threadIdx.x];
  data[threadIdx.x] = tile[63 - threadIdx.x];
}

__global__ void divergent_barrier(float* data) {
  if (threadIdx.x < 32) {
    data[0] = 1;
    __syncthreads();
  } else {
    data[1] = 1;
    __syncthreads();
  }
}

__global__ void early_exit(int n) {
  if (static_cast<int>(threadIdx.x) >= n) return;
  __syncthreads();
}

__global__ void foreign_mask() {
  __shfl_sync(0xfffffffeu, 1, 3);
}
__global__ void absent_lane() {
  __shfl_sync(0xffffffffu, 1, 3);
}
__global__ void source_outside() {
  if (threadIdx.x < 16) __shfl_sync(0xffffu, 1, 20);
}
__global__ void left_lane() {
  if (threadIdx.x == 7) return;
  __syncwarp();
}
__global__ void crossed_calls(int* out) {
  if (threadIdx.x < 16) {
    out[0] = __shfl_sync(0xffffffffu, 1, 3);
  } else {
    out[1] = static_cast<int>(__ballot_sync(0xffffffffu, 1));
  }
}
__global__ void barrier_in_one_warp() {
  if (threadIdx.x < 32) __syncthreads();
  if (threadIdx.x >= 32) __shfl_sync(threadIdx.x < 40 ? 0xffffffffu : 0xffffff00u, 1, 31);
}
__global__ void write_at(float* data, int64_t index) {
  data[index] = 1;
}
__global__ void write_shared(int index) {
  TARN_DYNAMIC_SHARED(float, tile);
  tile[index] = 1;
}
__global__ void store(float** where) {
  **where = 1;
}

template <class... P, class... A>
void run(dim3 grid, dim3 block, std::size_t shared, void (*kernel)(P...), A... arguments) {
  const auto config = shape(grid, block, shared);
  EXPECT_CUDA(cudaLaunchKernelEx(&config, kernel, arguments...));
  EXPECT_CUDA(cudaDeviceSynchronize());
}

using EmuDeathTest = testing::Test;

#if !defined(__SANITIZE_THREAD__)  // which reports the race; shared memory is not filled there
TEST(EmuDeathTest, a_missing_barrier_reads_nan) {
  const SettingsGuard guard;
  const DeviceArray<float> data(ramp(64));
  run(1, 64, 0, missing_barrier, data.get());
  EXPECT_TRUE(std::isnan(data.values()[0]));
}
#endif

TEST(EmuDeathTest, divergent_barriers_are_named) {
  const SettingsGuard guard;
  const DeviceArray<float> data(2);
  EXPECT_DEATH(run(1, 64, 0, divergent_barrier, data.get()),
               "kernel .*divergent_barrier, block .0,0,0., thread .*divergent __syncthreads: this "
               "thread is at .*kernels_test.cu:.*others wait at .*kernels_test.cu:");
}

TEST(EmuDeathTest, a_barrier_after_threads_left_is_an_error) {
  const SettingsGuard guard;
  EXPECT_DEATH(run(1, 64, 0, early_exit, 40), "left the kernel while the other threads wait at");
  tarn::emu::settings().order = 1;
  EXPECT_DEATH(run(1, 64, 0, early_exit, 40), "__syncthreads .* after 24 threads of the block");
}

TEST(EmuDeathTest, wrong_masks_are_errors) {
  const SettingsGuard guard;
  EXPECT_DEATH(run(1, 32, 0, foreign_mask), "lane 0 is not in its own mask fffffffe");
  EXPECT_DEATH(run(1, 16, 0, absent_lane), "names lanes ffff0000, which have left .* do not exist");
  EXPECT_DEATH(run(1, 32, 0, source_outside), "reads lane 20, which is not in mask 0000ffff");
  EXPECT_DEATH(run(1, 32, 0, left_lane), "names lanes 00000080, which have left");
  const DeviceArray<int> out(2);
  EXPECT_DEATH(run(1, 32, 0, crossed_calls, out.get()),
               "divergent warp calls under mask ffffffff: __shfl_sync at .* and __ballot_sync at");
}

TEST(EmuDeathTest, a_deadlock_lists_who_waits_where) {
  const SettingsGuard guard;
  EXPECT_DEATH(run(1, 64, 0, barrier_in_one_warp),
               "deadlock in block .0,0,0.: 40 threads wait for ever:\n  32 from .0,0,0. on wait in "
               "__syncthreads at .*kernels_test.cu:.*\n  8 from .32,0,0. on wait in __shfl_sync "
               "at .*mask ffffffff, arrived 000000ff");
}

TEST(EmuDeathTest, writes_next_to_an_allocation_are_found) {
  const SettingsGuard guard;
  const DeviceArray<float> data(100);
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_DEATH(run(1, 1, 0, write_at, data.get(), 100), "use-after-poison");
  EXPECT_DEATH(run(1, 1, 0, write_at, data.get(), -1), "use-after-poison");
#else
  EXPECT_DEATH(run(1, 1, 0, write_at, data.get(), 100),
               "device 0: byte 400 of an allocation of 400 bytes at .* was written to");
  EXPECT_DEATH(run(1, 1, 0, write_at, data.get(), -1),
               "memory before an allocation of 400 bytes at .* was written to");
#endif
}

TEST(EmuDeathTest, writes_past_dynamic_shared_memory_are_found) {
  run(1, 1, 40, write_shared, 9);
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_DEATH(run(1, 1, 40, write_shared, 10), "use-after-poison");
#else
  EXPECT_DEATH(run(1, 1, 40, write_shared, 10), "wrote byte 40 of 40 bytes of dynamic shared");
#endif
}

TEST(EmuDeathTest, a_host_pointer_is_no_kernel_argument) {
  float host = 0;
  EXPECT_DEATH(run(1, 1, 0, write_at, &host, 0), "argument 0 is .*, which is not device memory");
  float* freed = nullptr;
  EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&freed), 4));
  EXPECT_CUDA(cudaFree(freed));
  EXPECT_DEATH(run(1, 1, 0, write_at, freed, 0), "argument 0 is .*, which is not live device");
}

TEST(EmuDeathTest, invalid_addresses_name_the_thread) {
  const SettingsGuard guard;
  const DeviceArray<float*> where(std::vector<float*>{reinterpret_cast<float*>(16)});
  EXPECT_DEATH(run(2, 3, 0, store, where.get()),
               "cuda-emu: kernel .*store, block .0,0,0., thread .0,0,0. touched invalid address");
}

TEST(EmuDeathTest, the_host_must_not_touch_device_memory) {
  const DeviceArray<float> data(ramp(4));
  EXPECT_DEATH(*data.get() = 1, "cuda-emu: host code touched memory of device 0 at");
}

// ---- launches that CUDA refuses

TEST(EmuLaunch, shapes_beyond_the_limits_are_refused_with_cudas_codes) {
  const DeviceArray<float> data(4);
  const auto code = [&](dim3 grid, dim3 block, std::size_t shared) {
    const auto config = shape(grid, block, shared);
    return cudaLaunchKernelEx(&config, write_at, data.get(), 0);
  };
  EXPECT_EQ(code(0, 1, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(code(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(code(1, dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(code(dim3(1, 65536), 1, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(code(1, 1, (48 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_CUDA(
      cudaFuncSetAttribute(write_at, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
  EXPECT_EQ(code(1, 1, 100 << 10), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(write_at, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
            cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(EmuLaunch, the_log_names_kernels_and_shapes) {
  const DeviceArray<double> data(4);
  tarn::emu::start_launch_log();
  run(1, 4, 32, reverse_block<double>, data.get());
  const auto log = tarn::emu::stop_launch_log();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_EQ(log[0].kernel, "(anonymous namespace)::reverse_block<double>");
  EXPECT_EQ(log[0].grid[0], 1u);
  EXPECT_EQ(log[0].block[0], 4u);
  EXPECT_EQ(log[0].dynamic_shared_bytes, 32u);
}

#if !defined(__SANITIZE_THREAD__)  // where these arrays are thread-local
TEST(EmuLaunch, attributes_count_static_shared_memory) {
  cudaFuncAttributes attributes;
  EXPECT_CUDA(cudaFuncGetAttributes(&attributes, row_sum));
  EXPECT_EQ(attributes.sharedSizeBytes, 128u);
  EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, (48 << 10) - 128);
}
#endif

}  // namespace
