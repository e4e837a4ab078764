// cuda_emu_asan_test.cu - with AddressSanitizer and UBSan (which come together, as in
// test_cuda_asan), what a kernel does wrong without writing to a red zone is reported too.
#if defined(__SANITIZE_ADDRESS__)
#include "tarn/cuda/warp.cuh"
#include "tarn/tests/cuda_emu_tools.h"

namespace {

using namespace tarn::emu_test;

__global__ void read_at(float* out, const float* in, int i) {
  out[threadIdx.x] = in[i];
}

__global__ void shared_at(float* out, int i) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1;
  __syncthreads();
  const float* volatile escaped = tile;  // UBSan knows the array's size, else
  out[threadIdx.x] = escaped[i];
}

// After a barrier, so on the stack of a device thread that was switched to.
__global__ void local_at(float* out, int i) {
  float values[4] = {1, 2, 3, 4};
  __syncthreads();
  float* volatile escaped = values;
  out[threadIdx.x] = escaped[i];
}

__global__ void vector_at(float* out, const float* in, int i) {
  const float4 v = *reinterpret_cast<const float4*>(in + i);
  out[threadIdx.x] = v.x + v.w;
}

__global__ void square(int* out, int n) {
  *out = n * n;
}

template <class... P, class... A>
void run(unsigned threads, void (*kernel)(P...), A... arguments) {
  const auto config = shape(1, threads);
  EXPECT_CUDA(cudaLaunchKernelEx(&config, kernel, arguments...));
  EXPECT_CUDA(cudaDeviceSynchronize());
}

TEST(EmuAsanDeathTest, reads_past_the_end_are_reported) {
  const SettingsGuard guard;
  const DeviceArray<float> in(std::vector<float>(10, 5.0f)), out(32);
  run(1, read_at, out.get(), in.get(), 9);
  EXPECT_EQ(out.values()[0], 5.0f);
  EXPECT_DEATH(run(1, read_at, out.get(), in.get(), 10), "use-after-poison[^$]*read_at");
  EXPECT_DEATH(run(1, read_at, out.get(), in.get(), -1), "use-after-poison");
  run(32, shared_at, out.get(), 31);
  EXPECT_EQ(out.values()[31], 1.0f);
  EXPECT_DEATH(run(32, shared_at, out.get(), 32), "global-buffer-overflow");
  run(2, local_at, out.get(), 3);
  EXPECT_EQ(out.values()[1], 4.0f);
  EXPECT_DEATH(run(2, local_at, out.get(), 4), "stack-buffer-overflow");
}

TEST(EmuAsanDeathTest, undefined_behaviour_is_reported) {
  const SettingsGuard guard;
  const DeviceArray<float> in(std::vector<float>(16, 5.0f)), out(1);
  run(1, vector_at, out.get(), in.get(), 4);
  EXPECT_EQ(out.values()[0], 10.0f);
  EXPECT_DEATH(run(1, vector_at, out.get(), in.get(), 3), "misaligned address");
  const DeviceArray<int> squared(1);
  run(1, square, squared.get(), 46340);
  EXPECT_EQ(squared.values()[0], 2147395600);
  EXPECT_DEATH(run(1, square, squared.get(), 46341), "signed integer overflow: 46341 . 46341");
}

}  // namespace
#endif
