// cuda_conv_tools.h - shapes, operands and references for the tests of convolution on CUDA.
#pragma once

#include <cmath>
#include <map>

#include "gpu_tools.h"
#include "numeric_tools.h"
#include <gtest/gtest.h>

#include "tarn/core/backend.h"
#include "tarn/core/kernels.h"

namespace tarn::conv_test {

struct Case {
  const char* name;
  Shape x, w;
  Conv2dOptions o;

  Shape y() const {
    const auto out = [](int64_t in, int64_t pad, int64_t dilation, int64_t taps, int64_t stride) {
      return (in + 2 * pad - dilation * (taps - 1) - 1) / stride + 1;
    };
    return {x[0], w[0], out(x[2], o.pad_h, o.dilation_h, w[2], o.stride_h),
            out(x[3], o.pad_w, o.dilation_w, w[3], o.stride_w)};
  }
};

inline const std::vector<Case> kCases = {
    {"3x3", {2, 19, 7, 9}, {37, 19, 3, 3}, {.pad_h = 1, .pad_w = 1}},
    {"several tiles each way", {3, 70, 9, 10}, {130, 70, 1, 1}, {}},
    {"channels in fours", {2, 20, 6, 5}, {68, 20, 3, 3}, {.pad_h = 1, .pad_w = 1}},
    {"stem", {1, 3, 15, 13}, {16, 3, 7, 7}, {2, 2, 3, 3}},
    {"stride 2, pointwise", {2, 17, 7, 7}, {24, 17, 1, 1}, {2, 2}},
    {"dilated", {1, 16, 12, 12}, {16, 16, 3, 3}, {1, 1, 2, 2, 2, 2}},
    {"padding wider than the kernel", {1, 4, 5, 5}, {3, 4, 3, 3}, {1, 1, 4, 4}},
    {"image smaller than the kernel", {3, 16, 1, 2}, {16, 16, 3, 3}, {1, 1, 1, 1}},
    {"one channel", {2, 1, 12, 12}, {5, 1, 5, 5}, {1, 1, 2, 2}},
    {"wide groups", {2, 34, 5, 6}, {36, 17, 3, 3}, {.pad_h = 1, .pad_w = 1, .groups = 2}},
    {"narrow groups", {2, 24, 7, 7}, {36, 8, 3, 3}, {.pad_h = 1, .pad_w = 1, .groups = 3}},
    {"depthwise", {2, 35, 8, 9}, {35, 1, 3, 3}, {.pad_h = 1, .pad_w = 1, .groups = 35}},
    {"depthwise, two filters a channel", {1, 6, 9, 9}, {12, 1, 3, 3}, {2, 2, 1, 1, 1, 1, 6}},
    {"uneven", {2, 6, 11, 8}, {9, 2, 3, 2}, {2, 3, 1, 2, 2, 1, 3}},
    {"uneven, wide", {2, 18, 11, 8}, {20, 18, 3, 2}, {2, 3, 1, 2, 2, 1}},
};

inline Tensor last(const Shape& sizes, DType dtype, Device device = kCPU) {
  return empty(sizes, {.dtype = dtype, .device = device, .format = MemoryFormat::kChannelsLast});
}

inline void copy_bytes(const Tensor& from, const Tensor& to) {
  const Stream stream = current_stream(from.device().is_cpu() ? to.device() : from.device());
  backend(DeviceType::kCUDA)
      .copy(to.data(), to.device(), from.data(), from.device(),
            static_cast<size_t>(from.numel() * item_size(from.dtype())), stream);
  backend(DeviceType::kCUDA).synchronize(stream);
}

/// The same bytes on the GPU, and back.
inline Tensor there(const Tensor& x) {
  Tensor out = empty_strided(x.sizes(), x.strides(),
                             {.dtype = x.dtype(), .device = Device(DeviceType::kCUDA)});
  copy_bytes(x, out);
  return out;
}
inline Tensor back(const Tensor& x) {
  Tensor out = empty_strided(x.sizes(), x.strides(), {.dtype = x.dtype()});
  copy_bytes(x, out);
  return out;
}

struct Passes {
  Tensor y, gx, gw, gb;
};

/// All three passes with one device's kernels. Results start as NaN where they live on the CPU;
/// the emulator poisons its own memory.
inline Passes run(const ConvKernels& kernels, const Case& c, const Tensor& x, const Tensor& w,
                  const Tensor& bias, const Tensor& gy) {
  const TensorOptions like{.dtype = x.dtype(), .device = x.device()};
  Passes p{last(c.y(), x.dtype(), x.device()), last(c.x, x.dtype(), x.device()), empty(c.w, like),
           empty({c.w[0]}, like)};
  const Stream stream = current_stream(x.device());
  kernels.forward(x, w, bias, c.o, p.y, stream);
  kernels.backward_data(gy, w, c.o, p.gx, stream);
  kernels.backward_weight(x, gy, c.o, p.gw, p.gb, stream);
  return p;
}

struct Operands {
  Tensor x, w, bias, gy;
};

inline Operands operands(const Case& c, DType dtype) {
  const auto image = [&](const Shape& sizes, uint64_t seed) {
    return raw::contiguous(testing::random_tensor(sizes, seed, dtype), MemoryFormat::kChannelsLast);
  };
  return {image(c.x, 1), testing::random_tensor(c.w, 2, dtype),
          testing::random_tensor({c.w[0]}, 3, dtype), image(c.y(), 4)};
}

/// Largest error against the root mean square of what is expected.
inline double error(const Tensor& got, const Tensor& want) {
  const auto g = got.to_vector<double>(), w = want.to_vector<double>();
  double worst = 0, squares = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const double difference = std::abs(g[i] - w[i]);
    if (!(difference <= worst)) worst = difference;  // NaN counts
    squares += w[i] * w[i];
  }
  return w.empty() ? 0 : worst / (std::sqrt(squares / static_cast<double>(w.size())) + 1e-30);
}

inline void expect_near(const Passes& got, const Passes& want, double tolerance, const Case& c,
                        DType dtype) {
  EXPECT_LT(error(back(got.y), want.y), tolerance) << c.name << ", forward, " << dtype;
  EXPECT_LT(error(back(got.gx), want.gx), tolerance) << c.name << ", input, " << dtype;
  EXPECT_LT(error(back(got.gw), want.gw), tolerance) << c.name << ", weights, " << dtype;
  EXPECT_LT(error(back(got.gb), want.gb), tolerance) << c.name << ", bias, " << dtype;
}

inline Passes reference(const Case& c, const Operands& in) {
  const auto wide = [](const Tensor& t) { return raw::to(t, DType::kF64); };
  return run(kernels(kCPU).conv, c, wide(in.x), wide(in.w), wide(in.bias), wide(in.gy));
}

inline Passes on_device(const ConvKernels& kernels, const Case& c, const Operands& in) {
  return run(kernels, c, there(in.x), there(in.w), there(in.bias), there(in.gy));
}

inline const std::map<DType, double> kTolerances = {{DType::kF32, 1e-5},
                                                    {DType::kF64, 1e-13},
                                                    {DType::kF16, 8 * 0x1p-11},
                                                    {DType::kBF16, 8 * 0x1p-8}};

}  // namespace tarn::conv_test
