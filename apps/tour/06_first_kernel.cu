// 06_first_kernel.cu - a CUDA kernel from the naive form to one that is bound by memory bandwidth.
//
// y = gelu(a * x + b) for 16 million numbers. Each version is checked against tarn's CPU operators
// before it is timed. In a build with TARN_CUDA=EMU the kernels run on the CPU: the results are the
// same, the times mean nothing.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "tarn/autograd/functions.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/vec.cuh"

using namespace tarn;
using namespace tarn::cuda;

namespace {

// The mathematics, written once for every version: x Phi(x), in f32.
__device__ float scaled_gelu(float x, float a, float b) {
  const float v = a * x + b;
  return 0.5f * v * (1.0f + erff(v * 0.70710678f));
}

// Version 1: one thread, one number. Neighbouring threads of a warp read neighbouring numbers, so a
// warp's 32 loads of 4 bytes become one transaction of 128 bytes: coalesced. The guard is for the
// last block, which is rarely full.
__global__ void naive(const float* x, float* y, int64_t n, float a, float b) {
  const int64_t i = grid_index();
  if (i < n) y[i] = scaled_gelu(x[i], a, b);
}

// Version 2: a grid-stride loop. The grid no longer depends on n: a few blocks per multiprocessor
// stay and walk on, which saves starting blocks, and any grid gives the same result.
__global__ void grid_stride(const float* x, float* y, int64_t n, float a, float b) {
  for (int64_t i = grid_index(); i < n; i += grid_step()) y[i] = scaled_gelu(x[i], a, b);
}

// Version 3: 16 bytes at a time. Fewer instructions move the same bytes, and each thread has four
// times as many of them under way; hiding the latency of memory is what a GPU's speed is about.
// The numbers after the last full group of four are left to the first threads.
__global__ void vectorised(const float* x, float* y, int64_t n, float a, float b) {
  constexpr int kWidth = kVecWidth<float>;
  const int64_t groups = n / kWidth;
  for (int64_t g = grid_index(); g < groups; g += grid_step()) {
    Vec<float, kWidth> v = load_vec<kWidth>(x + g * kWidth);
#pragma unroll
    for (float& element : v.v) element = scaled_gelu(element, a, b);
    store_vec(y + g * kWidth, v);
  }
  const int64_t rest = groups * kWidth + grid_index();
  if (rest < n) y[rest] = scaled_gelu(x[rest], a, b);
}

using Kernel = void (*)(const float*, float*, int64_t, float, float);

struct Version {
  const char* name;
  Kernel kernel;
  bool fixed_grid;
};

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<float> u = a.to_vector<float>(), v = b.to_vector<float>();
  double most = 0;
  for (size_t i = 0; i < u.size(); ++i) most = std::max<double>(most, std::abs(u[i] - v[i]));
  return most;
}

// Milliseconds of one run, by events in the stream: the host's clock would measure the launch.
double time_of(const Version& version, const Tensor& x, const Tensor& y, Stream stream) {
  const int64_t n = x.numel();
  const unsigned blocks =
      version.fixed_grid ? blocks_for(n, 256 * 4, stream) : static_cast<unsigned>(ceil_div(n, 256));
  const auto run = [&] {
    launch(version.kernel, blocks, 256, 0, stream, x.data<float>(), y.data<float>(), n, 2.0f, 0.1f);
  };
  run();  // the first launch loads the kernel
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    Event begin(stream.device, true), end(stream.device, true);
    begin.record(stream);
    run();
    end.record(stream);
    end.synchronize();
    times.push_back(end.elapsed_ms_since(begin));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main() {
  if (!has_backend(DeviceType::kCUDA)) {
    std::printf("%s\n", why_no_backend(DeviceType::kCUDA).c_str());
    return 0;
  }
  const Device device("cuda");
  const DeviceInfo info = backend(device.type).info(0);
  const bool emulated = info.name.find("emulated") != std::string::npos;
  const int64_t n = (emulated ? int64_t{1} << 16 : int64_t{1} << 24) + 3;  // never a round number
  std::printf("device: %s, %lld numbers\n", info.name.c_str(), static_cast<long long>(n));

  manual_seed(1);
  const Tensor host = randn({n});
  const Tensor want = gelu(host * 2 + 0.1);
  const Tensor x = host.to(device);
  const Stream stream = current_stream(device);

  for (const Version& version :
       {Version{"1 naive", naive, false}, Version{"2 grid-stride", grid_stride, true},
        Version{"3 vectorised", vectorised, true}}) {
    const Tensor y = empty({n}, {.device = device});
    const double ms = time_of(version, x, y, stream);
    const double difference = largest_difference(y, want);
    const double gbps = 8.0 * static_cast<double>(n) / (ms * 1e6);  // 4 bytes in, 4 out
    std::printf("%-14s %8.3f ms  %7.1f GB/s   largest difference from the CPU %.1e\n", version.name,
                ms, gbps, difference);
    if (difference > 1e-5) return 1;
  }
  std::printf(
      "\nThe bytes are the same in all three, and so is the limit: a kernel that reads and\n"
      "writes every number once cannot beat the bandwidth of memory. tarn's own\n"
      "elementwise kernels (cuda/elementwise*.cu) are version 3 for every operator.\n");
  return 0;
}
