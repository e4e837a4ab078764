// peak.cpp - the machine's measured limits: multiply-adds in registers, copying in memory.
#include "tarn/apps/common/peak.h"

#include <cstring>

#include "tarn/apps/common/device_choice.h"
#include "tarn/apps/common/timing.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/parallel.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::apps {
namespace {

// Twelve independent chains of the widest vectors hide the latency of the multiply-add units.
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float Vec __attribute__((vector_size(4 * kWidth)));
constexpr int kChains = 12;

__attribute__((noinline)) void multiply_adds(int64_t rounds) {
  // Values the compiler cannot know, all different, so that no chain stands for another.
  volatile float seed = 0.999f;
  Vec sums[kChains], a, b;
  for (int i = 0; i < kWidth; ++i) {
    a[i] = seed;
    b[i] = seed * static_cast<float>(i + 1);  // not 0: sums must not fade into denormals
    for (int c = 0; c < kChains; ++c) sums[c][i] = seed * static_cast<float>(c * kWidth + i);
  }
  for (int64_t r = 0; r < rounds; ++r) {
    for (Vec& sum : sums) sum = sum * a + b;
  }
  float total = 0;
  for (const Vec& v : sums) {
    for (int i = 0; i < kWidth; ++i) total += v[i];
  }
  asm volatile("" : : "m"(total));  // somebody looks at it, as far as the compiler knows
}

double multiply_add_gflops(int64_t rounds, double seconds) {
  const int threads = num_threads();
  const double once =
      time_call([&] { parallel_for(threads, 1, [=](int64_t, int64_t) { multiply_adds(rounds); }); },
                seconds, 5);
  return 2.0 * kWidth * kChains * static_cast<double>(rounds) * threads / once / 1e9;
}

// Large enough to keep a GPU busy; an emulated one has no limits to find, and takes its time.
int64_t product_size(Device device, int64_t real, int64_t emulated) {
  return is_emulated(backend(device.type).info(device.index)) ? emulated : real;
}

double product_gflops(Device device, DType dtype, int64_t n, double seconds) {
  const NoGradGuard no_grad;
  // Values that differ, as a GPU draws less power on equal ones; and not the user's random numbers.
  const Tensor values = cos(arange(n * n, {.dtype = DType::kF32}));
  const Tensor a = values.view({n, n}).to(dtype).to(device);
  const double once = time_call([&] { matmul(a, a); }, [&] { synchronize(device); }, seconds, 5);
  const auto m = static_cast<double>(n);
  return 2 * m * m * m / once / 1e9;
}

// Eight sums: their additions must not wait for each other.
__attribute__((noinline)) float read_all(const float* x, int64_t n) {
  Vec sums[8] = {};
  for (int64_t i = 0; i + 8 * kWidth <= n; i += 8 * kWidth) {
    for (int c = 0; c < 8; ++c) {
      Vec v;
      std::memcpy(&v, x + i + c * kWidth, sizeof(v));
      sums[c] += v;
    }
  }
  float total = 0;
  for (const Vec& v : sums) total += v[0];
  return total;
}

}  // namespace

double measure_read_gbps() {
  const Tensor from = ones({int64_t{64} << 20});
  const double seconds = time_call(
      [&] {
        parallel_for(from.numel(), 1 << 18, [&](int64_t begin, int64_t end) {
          volatile float sum = read_all(from.data<float>() + begin, end - begin);
          (void)sum;
        });
      },
      0.5, 5);
  return 4.0 * static_cast<double>(from.numel()) / seconds / 1e9;
}

Peak measure_peak() {
  const int64_t bytes = int64_t{256} << 20;
  const Tensor from = ones({bytes}, {.dtype = DType::kU8}),
               to = ones({bytes}, {.dtype = DType::kU8});
  const double copy = time_call(
      [&] {
        parallel_for(bytes, 1 << 20, [&](int64_t begin, int64_t end) {
          std::memcpy(to.data<uint8_t>() + begin, from.data<uint8_t>() + begin,
                      static_cast<size_t>(end - begin));
        });
      },
      0.5, 5);
  return {multiply_add_gflops(2'000'000, 0.3), 2.0 * static_cast<double>(bytes) / copy / 1e9};
}

Peak measure_peak(Device device) {
  const int64_t n = product_size(device, 8192, 64);
  const Tensor from = ones({64 * n * n}, {.device = device});
  const Tensor to = empty({64 * n * n}, {.device = device});
  const auto bytes = static_cast<double>(4 * from.numel());
  const double copy =
      time_call([&] { raw::copy_(to, from); }, [&] { synchronize(device); }, 0.5, 5);
  return {product_gflops(device, DType::kF32, n, 0.5), 2 * bytes / copy / 1e9};
}

double measure_peak_gflops(Device device, DType dtype) {
  if (device.is_cpu() && dtype == DType::kF32) return multiply_add_gflops(200'000, 0.02);
  const int64_t n = device.is_cpu() ? 1024 : product_size(device, 4096, 32);
  return product_gflops(device, dtype, n, 0.02);
}

}  // namespace tarn::apps
