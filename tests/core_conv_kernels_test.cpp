// core_conv_kernels_test.cpp - every CPU convolution engine against sums in f64.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/core/cpu/conv_dispatch.h"
#include "tarn/core/cpu/half_lanes.h"
#include "tarn/core/cpu/im2col_conv.h"
#include "tarn/core/cpu/winograd.h"
#include "tarn/core/dtype.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

using Values = std::vector<double>;

struct Case {
  const char* name;
  Conv2dShape s;
};

Conv2dShape shape(int64_t n, int64_t c, int64_t h, int64_t w, int64_t k, int64_t kernel,
                  int64_t stride, int64_t pad, int64_t dilation = 1, int64_t groups = 1) {
  Conv2dShape s;
  s.n = n, s.c = c, s.h = h, s.w = w, s.k = k;
  s.kh = s.kw = kernel;
  s.stride_h = s.stride_w = stride;
  s.pad_h = s.pad_w = pad;
  s.dil_h = s.dil_w = dilation;
  s.groups = groups;
  return s;
}

Conv2dShape uneven() {  // everything different in the two directions
  Conv2dShape s = shape(2, 6, 11, 8, 9, 3, 1, 0, 1, 3);
  s.kw = 2, s.stride_h = 2, s.stride_w = 3, s.pad_h = 1, s.pad_w = 2, s.dil_h = 2;
  return s;
}

const std::vector<Case> kCases = {
    {"plain 3x3", shape(2, 16, 8, 8, 16, 3, 1, 1)},
    {"odd image, channels not a multiple of 16", shape(2, 19, 7, 9, 37, 3, 1, 1)},
    {"more than one block of channels", shape(1, 130, 6, 5, 70, 3, 1, 1)},
    {"no padding", shape(2, 32, 9, 6, 24, 3, 1, 0)},
    {"full padding", shape(1, 17, 5, 5, 18, 3, 1, 2)},
    {"image smaller than the kernel", shape(3, 16, 1, 2, 16, 3, 1, 1)},
    {"many tiles", shape(9, 16, 21, 22, 16, 3, 1, 1)},
    {"few channels", shape(2, 3, 10, 10, 8, 3, 1, 1)},
    {"one channel", shape(2, 1, 12, 12, 5, 5, 1, 2)},
    {"stride 2", shape(2, 16, 9, 10, 32, 3, 2, 1)},
    {"stride 2, even image", shape(3, 24, 16, 18, 33, 3, 2, 1)},
    {"stride 2, blocks of channels", shape(1, 70, 13, 6, 130, 3, 2, 1)},
    {"stride 2, no padding", shape(2, 16, 9, 10, 32, 3, 2, 0)},
    {"stride 2, many tiles", shape(8, 16, 33, 30, 16, 3, 2, 1)},
    {"stem", shape(1, 3, 23, 21, 16, 7, 2, 3)},
    {"1x1", shape(2, 33, 6, 7, 20, 1, 1, 0)},
    {"1x1, stride 2", shape(2, 16, 7, 7, 40, 1, 2, 0)},
    {"1x1, padded", shape(1, 5, 4, 4, 6, 1, 1, 1)},
    {"dilated", shape(1, 16, 12, 12, 16, 3, 1, 2, 2)},
    {"padding wider than the kernel", shape(1, 4, 5, 5, 3, 3, 1, 4)},
    {"groups", shape(2, 24, 7, 7, 36, 3, 1, 1, 1, 3)},
    {"depthwise", shape(2, 32, 8, 9, 32, 3, 1, 1, 1, 32)},
    {"depthwise, two filters per channel, stride 2", shape(1, 6, 9, 9, 12, 3, 2, 1, 1, 6)},
    {"uneven", uneven()},
    // Where bf16 kernels of oneDNN 2.6 are wrong.
    {"1x1, odd number of filters, 30 pixels", shape(2, 16, 5, 6, 3, 1, 1, 0)},
    {"1x1, one filter, 240 pixels", shape(2, 64, 12, 20, 1, 1, 1, 0)},
    {"1x1, odd number of filters, stride 2", shape(1, 8, 9, 11, 5, 1, 2, 0)},
    {"groups, 1x1 with dilation, 32 wide", shape(1, 2, 8, 32, 2, 1, 1, 0, 2, 2)},
    {"groups, dilated, 40 wide", shape(1, 8, 10, 40, 8, 3, 1, 2, 2, 2)},
    {"depthwise, dilated, 36 wide", shape(2, 16, 9, 36, 16, 3, 1, 3, 3, 16)},
    {"one pixel, stride 2, padded", shape(3, 16, 1, 1, 16, 3, 2, 1)},
    {"image narrower than the stride", shape(2, 16, 9, 2, 16, 5, 3, 2)},
    {"image lower than the stride", shape(2, 16, 2, 9, 16, 5, 3, 2)},
};

/// Reference sums and, for the bound, sums of absolute values.
struct Reference {
  Values y, gx, gw, gb;
};

Reference reference(const Conv2dShape& s, const Values& x, const Values& w, const Values& bias,
                    const Values& gy) {
  const int64_t oh = s.oh(), ow = s.ow(), cg = s.c / s.groups, kg = s.k / s.groups;
  Reference r{Values(gy.size()), Values(x.size()), Values(w.size()), Values(bias.size())};
  for (int64_t n = 0; n < s.n; ++n) {
    for (int64_t oy = 0; oy < oh; ++oy) {
      for (int64_t ox = 0; ox < ow; ++ox) {
        for (int64_t k = 0; k < s.k; ++k) {
          const size_t at = static_cast<size_t>(((n * oh + oy) * ow + ox) * s.k + k);
          r.y[at] = bias[static_cast<size_t>(k)];
          r.gb[static_cast<size_t>(k)] += gy[at];
          for (int64_t p = 0; p < s.kh; ++p) {
            for (int64_t q = 0; q < s.kw; ++q) {
              const int64_t iy = oy * s.stride_h - s.pad_h + p * s.dil_h;
              const int64_t ix = ox * s.stride_w - s.pad_w + q * s.dil_w;
              if (iy < 0 || iy >= s.h || ix < 0 || ix >= s.w) continue;
              for (int64_t c = 0; c < cg; ++c) {
                const size_t xi =
                    static_cast<size_t>(((n * s.h + iy) * s.w + ix) * s.c + k / kg * cg + c);
                const size_t wi = static_cast<size_t>(((k * cg + c) * s.kh + p) * s.kw + q);
                r.y[at] += x[xi] * w[wi];
                r.gx[xi] += gy[at] * w[wi];
                r.gw[wi] += gy[at] * x[xi];
              }
            }
          }
        }
      }
    }
  }
  return r;
}

template <typename T>
std::vector<T> as(const Values& values) {
  std::vector<T> out;
  for (double v : values) out.push_back(T(static_cast<compute_t<T>>(v)));
  return out;
}

/// Values that T holds exactly.
template <typename T>
Values random_values(int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  Values out(static_cast<size_t>(count));
  for (double& v : out) v = static_cast<compute_t<T>>(T(static_cast<compute_t<T>>(uniform(rng))));
  return out;
}

/// Error against the root mean square of what is expected.
template <typename T>
double relative_error(const std::vector<T>& got, const Values& want) {
  double worst = 0, squares = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(compute_t<T>(got[i])) - want[i]);
    if (!(difference <= worst)) worst = difference;  // NaN counts
    squares += want[i] * want[i];
  }
  return want.empty() ? 0 : worst / (std::sqrt(squares / static_cast<double>(want.size())) + 1e-30);
}

template <typename T>
void check_passes(const Case& test, double tolerance) {
  const Conv2dShape& s = test.s;
  const Values x = random_values<T>(s.input_size(), 1), w = random_values<T>(s.weight_size(), 2);
  const Values bias = random_values<T>(s.k, 3), gy = random_values<T>(s.output_size(), 4);
  const Reference want = reference(s, x, w, bias, gy);
  const std::vector<T> xt = as<T>(x), wt = as<T>(w), bt = as<T>(bias), gyt = as<T>(gy);
  const T poison = T(compute_t<T>(NAN));
  std::vector<T> y(gy.size(), poison), gx(x.size(), poison), gw(w.size(), poison),
      gb(bias.size(), poison);
  conv2d_forward(s, dtype_of<T>, xt.data(), wt.data(), bt.data(), y.data());
  conv2d_backward_data(s, dtype_of<T>, gyt.data(), wt.data(), gx.data());
  conv2d_backward_weights(s, dtype_of<T>, xt.data(), gyt.data(), gw.data(), gb.data());
  EXPECT_LT(relative_error(y, want.y), tolerance) << test.name << ", forward";
  EXPECT_LT(relative_error(gx, want.gx), tolerance) << test.name << ", backward data";
  EXPECT_LT(relative_error(gw, want.gw), tolerance) << test.name << ", backward weights";
  EXPECT_LT(relative_error(gb, want.gb), tolerance) << test.name << ", bias gradient";
}

TEST(ConvKernels, every_pass_agrees_with_sums_in_f64) {
  for (const Case& test : kCases) {
    check_passes<float>(test, 2e-5);
    check_passes<double>(test, 1e-13);
  }
}

TEST(ConvKernels, direct_engines_agree_when_winograd_is_off) {
  set_winograd_enabled(false);
  for (const Case& test : kCases) check_passes<float>(test, 1e-5);
  set_winograd_enabled(true);
}

TEST(ConvKernels, halves_accumulate_in_f32) {
  for (const Case& test : kCases) {
    check_passes<bfloat16>(test, 8 * std::ldexp(1.0, -8));  // largest over rms
    check_passes<half>(test, 8 * std::ldexp(1.0, -11));
  }
}

template <typename T>
void check_im2col(const Case& test, double tolerance) {
  const Conv2dShape& s = test.s;
  const Values x = random_values<T>(s.input_size(), 1), w = random_values<T>(s.weight_size(), 2);
  const Values bias = random_values<T>(s.k, 3), gy = random_values<T>(s.output_size(), 4);
  const Reference want = reference(s, x, w, bias, gy);
  const std::vector<T> xt = as<T>(x), wt = as<T>(w), bt = as<T>(bias), gyt = as<T>(gy);
  std::vector<T> y(gy.size(), T(NAN)), gx(x.size(), T(NAN)), gw(w.size(), T(NAN));
  im2col_forward(s, xt.data(), wt.data(), bt.data(), y.data());
  im2col_backward_data(s, gyt.data(), wt.data(), gx.data());
  im2col_backward_weights(s, xt.data(), gyt.data(), gw.data());
  EXPECT_LT(relative_error(y, want.y), tolerance) << test.name;
  EXPECT_LT(relative_error(gx, want.gx), tolerance) << test.name;
  EXPECT_LT(relative_error(gw, want.gw), tolerance) << test.name;
}

TEST(ConvKernels, the_library_free_path_does_every_shape) {
  for (const Case& test : kCases) check_im2col<float>(test, 1e-5);
}

TEST(ConvKernels, winograd_error_stays_near_1e_6) {
  const Conv2dShape s = shape(2, 64, 16, 16, 64, 3, 1, 1);
  const Values x = random_values<float>(s.input_size(), 1);
  const Values w = random_values<float>(s.weight_size(), 2);
  const Values bias(static_cast<size_t>(s.k)), gy = random_values<float>(s.output_size(), 4);
  const Reference want = reference(s, x, w, bias, gy);
  const std::vector<float> xt = as<float>(x), wt = as<float>(w), gyt = as<float>(gy);
  std::vector<float> y(gy.size()), gx(x.size()), gw(w.size());
  winograd_forward(s, xt.data(), wt.data(), nullptr, y.data());
  winograd_backward_data(s, gyt.data(), wt.data(), gx.data());
  winograd_backward_weights(s, xt.data(), gyt.data(), gw.data());
  const auto l2 = [](const std::vector<float>& got, const Values& expected) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      error +=
          (static_cast<double>(got[i]) - expected[i]) * (static_cast<double>(got[i]) - expected[i]);
      norm += expected[i] * expected[i];
    }
    return std::sqrt(error / norm);
  };
  EXPECT_LT(l2(y, want.y), 2e-6);
  EXPECT_LT(l2(gx, want.gx), 2e-6);
  EXPECT_LT(l2(gw, want.gw), 2e-6);
}

/// bf16 numbers through the f32 transforms: their one rounding is that of the result.
TEST(ConvKernels, winograd_of_bf16_is_that_of_f32_rounded_once) {
  for (const Case& test : kCases) {
    const Conv2dShape& s = test.s;
    if (!winograd_applies(s)) continue;
    const auto x = as<bfloat16>(random_values<float>(s.input_size(), 1));
    const auto w = as<bfloat16>(random_values<float>(s.weight_size(), 2));
    const auto bias = as<bfloat16>(random_values<float>(s.k, 3));
    const auto gy = as<bfloat16>(random_values<float>(s.output_size(), 4));
    const auto wide = [](const std::vector<bfloat16>& v) {
      return std::vector<float>(v.begin(), v.end());
    };
    const auto bits = [](const auto& v) {
      std::vector<uint16_t> out;
      for (const auto value : v) out.push_back(bfloat16(static_cast<float>(value)).bits);
      return out;
    };
    std::vector<bfloat16> y(gy.size()), gx(x.size()), gw(w.size());
    std::vector<float> want_y(gy.size()), want_gx(x.size()), want_gw(w.size());
    const auto fx = wide(x), fw = wide(w), fb = wide(bias), fgy = wide(gy);
    winograd_forward(s, x.data(), w.data(), bias.data(), y.data());
    winograd_forward(s, fx.data(), fw.data(), fb.data(), want_y.data());
    EXPECT_EQ(bits(y), bits(want_y)) << test.name;
    winograd_backward_data(s, gy.data(), w.data(), gx.data());
    winograd_backward_data(s, fgy.data(), fw.data(), want_gx.data());
    EXPECT_EQ(bits(gx), bits(want_gx)) << test.name;
    winograd_backward_weights(s, x.data(), gy.data(), gw.data());
    winograd_backward_weights(s, fx.data(), fgy.data(), want_gw.data());
    EXPECT_EQ(bits(gw), bits(want_gw)) << test.name;
  }
}

TEST(ConvKernels, sixteen_bf16_are_rounded_as_one) {
  std::vector<float> values = {
      0.0f,      -0.0f, 1.00390625f, 1.01171875f, 3.3895314e38f, 1e-40f,    -1e-39f, INFINITY,
      -INFINITY, NAN,   -NAN,        65535.5f,    1.0078125f,    -2.00001f, 1e38f,   3.4e38f};
  for (const float v : random_values<float>(160, 9)) values.push_back(v * 1e-38f);
  for (size_t i = 0; i < values.size(); i += 16) {
    bfloat16 got[16];
    store16(got, load16(values.data() + i));
    float back[16];
    store16(back, load16(got));
    for (size_t j = 0; j < 16; ++j) {
      const bfloat16 one(values[i + j]);
      EXPECT_EQ(got[j].bits, one.bits) << values[i + j];
      EXPECT_EQ(std::bit_cast<uint32_t>(back[j]), uint32_t{one.bits} << 16) << values[i + j];
    }
  }
}

TEST(ConvKernels, own_engines_give_the_same_bits_at_any_thread_count) {
  const int threads_before = num_threads();
  for (const Case& test : kCases) {
    const Conv2dShape& s = test.s;
    const auto x = as<float>(random_values<float>(s.input_size(), 1));
    const auto w = as<float>(random_values<float>(s.weight_size(), 2));
    const auto gy = as<float>(random_values<float>(s.output_size(), 4));
    std::vector<std::vector<float>> first;
    for (int threads : {1, 2, 3}) {
      set_num_threads(threads);
      std::vector<float> y(gy.size()), gx(x.size()), gw(w.size());
      if (winograd_applies(s)) {
        winograd_forward(s, x.data(), w.data(), nullptr, y.data());
        winograd_backward_data(s, gy.data(), w.data(), gx.data());
        winograd_backward_weights(s, x.data(), gy.data(), gw.data());
      } else {
        im2col_forward<float>(s, x.data(), w.data(), nullptr, y.data());
        im2col_backward_data(s, gy.data(), w.data(), gx.data());
        im2col_backward_weights(s, x.data(), gy.data(), gw.data());
      }
      if (first.empty()) {
        first = {y, gx, gw};
      } else {
        EXPECT_EQ(first[0], y) << test.name << ", " << threads << " threads";
        EXPECT_EQ(first[1], gx) << test.name << ", " << threads << " threads";
        EXPECT_EQ(first[2], gw) << test.name << ", " << threads << " threads";
      }
    }
  }
  set_num_threads(threads_before);
}

TEST(ConvKernels, nothing_in_gives_zero_gradients) {
  const Conv2dShape s = shape(0, 16, 8, 8, 16, 3, 1, 1);
  const std::vector<float> w(static_cast<size_t>(s.weight_size()), 1.0f);
  std::vector<float> gw(w.size(), NAN), gb(16, NAN);
  conv2d_forward(s, DType::kF32, nullptr, w.data(), nullptr, nullptr);
  conv2d_backward_data(s, DType::kF32, nullptr, w.data(), nullptr);
  conv2d_backward_weights(s, DType::kF32, nullptr, nullptr, gw.data(), gb.data());
  EXPECT_EQ(gw, std::vector<float>(gw.size(), 0.0f));
  EXPECT_EQ(gb, std::vector<float>(gb.size(), 0.0f));
}

TEST(ConvKernels, no_output_pixels_give_a_zero_input_gradient) {
  const Conv2dShape s = shape(1, 2, 2, 2, 3, 3, 1, 0);  // output 0 x 0
  const std::vector<float> w(static_cast<size_t>(s.weight_size()), 1.0f);
  std::vector<float> gx(8, NAN);
  conv2d_backward_data(s, DType::kF32, nullptr, w.data(), gx.data());
  EXPECT_EQ(gx, std::vector<float>(8, 0.0f));
}

TEST(ConvKernels, winograd_passes_nan_and_infinity_on) {
  const Conv2dShape s = shape(1, 16, 8, 8, 16, 3, 1, 1);
  std::vector<float> x(static_cast<size_t>(s.input_size()), 1.0f);
  const std::vector<float> w(static_cast<size_t>(s.weight_size()), 1.0f);
  std::vector<float> y(static_cast<size_t>(s.output_size()));
  x[0] = NAN;
  winograd_forward(s, x.data(), w.data(), nullptr, y.data());
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_FALSE(std::isnan(y.back()));  // another tile
}

}  // namespace
}  // namespace tarn::cpu
