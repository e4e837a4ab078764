// cuda_pool_test.cpp - pooling on the GPU agrees with the CPU, and gradients are deterministic.
#include "gpu_compare.h"
#include "numeric_tools.h"
#include "tests_throws.h"

#include "tarn/core/raw_pool.h"

namespace tarn {
namespace {

using testing::random_tensor;

constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
constexpr MemoryFormat kFormats[] = {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast};

struct Case {
  std::string name;
  Shape x;
  Pool2dOptions options;
  bool ceil_mode = false;
  Shape adaptive = {};  // [h, w]
};

Shape result_sizes(const Case& c, const Tensor& x) {
  if (c.options.adaptive) {
    return raw::adaptive_sizes("pool", x, {c.adaptive[0], c.adaptive[1]});
  }
  return raw::pool2d_sizes("pool", x, c.options, c.ceil_mode);
}

std::vector<Case> plain_cases() {
  return {
      {"2 by 2", {2, 8, 6, 8}, {.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2}},
      {"resnet's",
       {2, 16, 13, 15},
       {.kernel_h = 3, .kernel_w = 3, .stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 1}},
      {"overlapping, odd channels", {3, 5, 9, 7}, {.kernel_h = 3, .kernel_w = 2}},
      {"ceil",
       {1, 3, 10, 11},
       {.kernel_h = 3, .kernel_w = 4, .stride_h = 3, .stride_w = 3, .pad_h = 1, .pad_w = 2},
       true},
      {"stride beyond the kernel", {1, 4, 12, 9}, {.stride_h = 3, .stride_w = 2}},
      {"wide rows", {1, 2, 3, 700}, {.kernel_h = 2, .kernel_w = 5, .stride_w = 2}},
      {"large windows",
       {2, 3, 20, 30},
       {.kernel_h = 7, .kernel_w = 9, .stride_h = 5, .stride_w = 4, .pad_h = 3, .pad_w = 4}},
  };
}
std::vector<Case> adaptive_cases() {
  const Pool2dOptions adaptive{.adaptive = true};
  return {{"global", {3, 16, 7, 7}, adaptive, false, {1, 1}},
          {"global over few channels", {2, 3, 20, 31}, adaptive, false, {1, 1}},
          {"global over many channels", {2, 328, 9, 13}, adaptive, false, {1, 1}},
          {"parts wider than a block is deep", {1, 8, 3, 400}, adaptive, false, {2, 2}},
          {"uneven", {2, 8, 10, 13}, adaptive, false, {3, 5}},
          {"rows", {2, 2, 33, 12}, adaptive, false, {2, 1}},
          {"larger than the image", {1, 4, 3, 5}, adaptive, false, {7, 6}}};
}

void check_max(const Case& c, DType dtype, MemoryFormat format, DType index_dtype) {
  const Both x(raw::contiguous(random_tensor(c.x, 1, dtype), format));
  const auto pool = [&](const Tensor& t) {
    return raw::max_pool2d(t, c.options, result_sizes(c, t), index_dtype);
  };
  const auto [cpu, cpu_index] = pool(x.cpu);
  const auto [gpu, gpu_index] = pool(x.gpu);
  expect_agree(gpu, cpu, 0, c.name);
  expect_agree(gpu_index, cpu_index, 0, c.name + ", index");
  const Tensor gy = raw::contiguous(random_tensor(cpu.sizes(), 2, dtype), format);
  expect_agree(raw::max_pool2d_backward(raw::to(gy, kCuda), gpu_index, c.options, c.x, format),
               raw::max_pool2d_backward(gy, cpu_index, c.options, c.x, format), 0,
               c.name + ", gradient");
}

TEST(CudaPool, maxima_their_places_and_gradients_are_the_cpus) {
  TARN_NEEDS_GPU();
  std::vector<Case> cases = plain_cases();
  cases.push_back({"dilated",
                   {2, 4, 11, 12},
                   {.kernel_h = 3, .kernel_w = 2, .pad_h = 1, .dilation_h = 2, .dilation_w = 3}});
  for (const Case& c : adaptive_cases()) cases.push_back(c);
  for (const Case& c : cases) {
    for (MemoryFormat format : kFormats) {
      check_max(c, DType::kF32, format, DType::kI64);
      check_max(c, DType::kF32, format, DType::kI32);
    }
  }
  for (DType dtype : kFloats) {
    for (MemoryFormat format : kFormats) {
      check_max(cases[1], dtype, format, DType::kI64);
      check_max(cases[1], dtype, format, DType::kI32);
    }
  }
}

TEST(CudaPool, nan_is_the_maximum_and_padding_is_below_minus_infinity) {
  TARN_NEEDS_GPU();
  const Pool2dOptions o{.kernel_h = 2, .kernel_w = 2, .stride_h = 2, .stride_w = 2, .pad_h = 1};
  for (MemoryFormat format : kFormats) {
    const Tensor x = raw::contiguous(random_tensor({1, 4, 6, 6}, 1, DType::kF32), format);
    for (int i : {3, 20, 21}) x.data<float>()[i] = NAN;
    for (int i = 40; i < 100; ++i) x.data<float>()[i] = -INFINITY;
    const auto pool = [&](const Tensor& t) {
      return raw::max_pool2d(t, o, raw::pool2d_sizes("pool", t, o, false), DType::kI64);
    };
    const auto cpu = pool(x), gpu = pool(raw::to(x, kCuda));
    expect_agree(gpu.first, cpu.first, 0, "maxima");
    expect_agree(gpu.second, cpu.second, 0, "places");
  }
}

TEST(CudaPool, what_needs_more_than_32_bits_is_refused) {
  TARN_NEEDS_GPU();
  const Tensor x = zeros({1, 1, 4, 4}, {.device = kCuda});
  const Pool2dOptions o{.kernel_h = 2, .kernel_w = 2, .stride_h = int64_t{1} << 32};
  EXPECT_THROWS_WITH(raw::avg_pool2d(x, o, raw::pool2d_sizes("pool", x, o, false)),
                     UnsupportedError, "must be below 2^30; got 4294967296");
}

void check_average(const Case& c, DType dtype, MemoryFormat format) {
  const double ulps = is_half(dtype) ? 1 : 8;
  const Both x(raw::contiguous(random_tensor(c.x, 1, dtype), format));
  const auto y =
      x.map([&](const Tensor& t) { return raw::avg_pool2d(t, c.options, result_sizes(c, t)); });
  expect_agree(y, ulps, c.name, 1.0);
  const Tensor gy = raw::contiguous(random_tensor(y.cpu.sizes(), 2, dtype), format);
  expect_agree(raw::avg_pool2d_backward(raw::to(gy, kCuda), c.options, c.x, format),
               raw::avg_pool2d_backward(gy, c.options, c.x, format), ulps, c.name + ", gradient",
               1.0);
}

TEST(CudaPool, averages_and_their_gradients_agree_with_the_cpu) {
  TARN_NEEDS_GPU();
  std::vector<Case> cases = plain_cases();
  for (Case c : plain_cases()) {
    c.options.count_include_pad = false;
    cases.push_back(c);
    c.options.divisor_override = 3;
    cases.push_back(c);
  }
  for (const Case& c : adaptive_cases()) cases.push_back(c);
  for (const Case& c : cases) {
    for (MemoryFormat format : kFormats) check_average(c, DType::kF32, format);
  }
  std::vector<Case> few = adaptive_cases();
  few.push_back(plain_cases()[1]);
  few.push_back(plain_cases().back());
  for (DType dtype : kFloats) {
    for (const Case& c : few) {
      for (MemoryFormat format : kFormats) check_average(c, dtype, format);
    }
  }
}

}  // namespace
}  // namespace tarn
