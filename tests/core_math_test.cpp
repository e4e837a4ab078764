// core_math_test.cpp - float functions against double ones over the whole range of floats.
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "tarn/core/dual.h"
#include "tarn/core/math.h"

namespace tarn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = 1e-40f;

/// The distance of got from want in units of the last place of a float near want; huge where the
/// special value (NaN, infinity, the sign of zero) is another.
double ulps(float got, double want) {
  constexpr double kWrong = 1e30;
  if (std::isnan(want)) return std::isnan(got) ? 0 : kWrong;
  if (std::isnan(got)) return kWrong;
  if (std::isinf(got) || std::isinf(static_cast<float>(want))) {
    constexpr double kNearMax = 3.40282e38;
    return std::signbit(got) == std::signbit(want) && std::abs(want) > kNearMax &&
                   std::abs(got) > kNearMax
               ? 0
               : kWrong;
  }
  if (got == 0 && std::signbit(got) != std::signbit(want)) return kWrong;
  int exponent = 0;
  std::frexp(want, &exponent);
  return std::abs(got - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

/// Sweeps all signs, exponents and a dense net of mantissas, denormals and NaNs included.
template <class F, class Reference>
void expect_within(double limit, F f, Reference reference) {
  constexpr uint64_t kStep = 8191;
  double worst = 0;
  float at = 0;
  const auto check = [&](float x) {
    const double error = ulps(f(x), reference(static_cast<double>(x)));
    if (error > worst) worst = error, at = x;
  };
  for (uint64_t i = 0; i <= std::numeric_limits<uint32_t>::max(); i += kStep) {
    check(std::bit_cast<float>(static_cast<uint32_t>(i)));
  }
  for (float x : {0.0f, -0.0f, 1.0f, -1.0f, kInf, -kInf, kNan, kDenormal, -kDenormal,
                  std::numeric_limits<float>::max(), std::numeric_limits<float>::min()}) {
    check(x);
  }
  EXPECT_LE(worst, limit) << "at " << std::hexfloat << at << std::defaultfloat << " = " << at
                          << ", got " << f(at) << ", want " << reference(at);
}

#define TARN_SWEEP(function, limit)                       \
  TEST(Math, function##_is_accurate_for_every_float) {    \
    expect_within(                                        \
        limit, [](float x) { return math::function(x); }, \
        [](double x) { return std::function(x); });       \
  }
TARN_SWEEP(exp, 1.0)
TARN_SWEEP(exp2, 1.0)
TARN_SWEEP(expm1, 1.7)
TARN_SWEEP(log, 1.0)
TARN_SWEEP(log2, 2.0)
TARN_SWEEP(log10, 2.0)
TARN_SWEEP(log1p, 1.5)
TARN_SWEEP(tanh, 1.6)
TARN_SWEEP(erf, 1.5)
TARN_SWEEP(erfc, 0.6)
TARN_SWEEP(sin, 0.6)
TARN_SWEEP(cos, 0.6)
TARN_SWEEP(tan, 0.6)
TARN_SWEEP(sqrt, 0.6)
TARN_SWEEP(asinh, 2.0)
#undef TARN_SWEEP

TEST(Math, sigmoid_is_accurate_for_every_float) {
  expect_within(
      2.0, [](float x) { return math::sigmoid(x); },
      [](double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); });
}

TEST(Math, rsqrt_is_accurate_for_every_float) {
  expect_within(
      1.6, [](float x) { return math::rsqrt(x); }, [](double x) { return 1 / std::sqrt(x); });
}

TEST(Math, pow_agrees_with_c_on_special_values) {
  const float values[] = {0.0f,  -0.0f,  1.0f,   -1.0f,       2.0f,         -2.0f,      3.0f,
                          -3.0f, 0.5f,   -0.5f,  kInf,        -kInf,        kNan,       kDenormal,
                          7.0f,  0.999f, 1e30f,  -kDenormal,  16777218.0f,  3.4e38f,    -0.999f,
                          -7.0f, 1.001f, -1e30f, 33554432.0f, -33554431.0f, 8388607.5f, 1e-30f};
  for (float x : values) {
    for (float y : values) {
      const float want = std::pow(x, y);
      EXPECT_LE(ulps(math::pow(x, y), want), 1.0)
          << "pow(" << x << ", " << y << ") gave " << math::pow(x, y) << ", want " << want;
    }
  }
}

TEST(Math, pow_is_accurate_over_its_range) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> mantissa(0.5f, 2.0f), exponent(-40.0f, 40.0f);
  std::uniform_int_distribution<uint32_t> any(0, 0x7f7fffffu);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const float x = i % 2 != 0 ? mantissa(random) : std::bit_cast<float>(any(random));
    const float y = i % 2 != 0 ? exponent(random) : exponent(random) / 16;
    worst = std::max(worst, ulps(math::pow(x, y), std::pow(static_cast<double>(x), y)));
  }
  EXPECT_LE(worst, 0.6);
}

TEST(Math, sin_and_cos_reduce_huge_angles_exactly) {
  // The floats nearest to a multiple of pi/2, where a sloppy reduction loses every digit, among
  // others 16367173 * 2^72 (Muller, Elementary Functions, table of worst cases for binary32).
  for (float x : {std::ldexp(16367173.0f, 72), std::ldexp(15706813.0f, 52), 1e38f, -3e20f, 1e15f,
                  std::numeric_limits<float>::max(), 0x1p53f, 0x1p81f, 0x1p109f}) {
    EXPECT_LE(ulps(math::sin(x), std::sin(static_cast<double>(x))), 0.6) << x;
    EXPECT_LE(ulps(math::cos(x), std::cos(static_cast<double>(x))), 0.6) << x;
    EXPECT_LE(ulps(math::tan(x), std::tan(static_cast<double>(x))), 0.6) << x;
  }
}

TEST(Math, integers_wrap) {
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(math::wrap_add(kMax, 1), kMin);
  EXPECT_EQ(math::wrap_sub(kMin, 1), kMax);
  EXPECT_EQ(math::wrap_mul(kMax, 2), -2);
  EXPECT_EQ(math::negate(kMin), kMin);
  EXPECT_EQ(math::wrap_add<uint8_t>(200, 100), 44);
  EXPECT_EQ(math::wrap_mul<uint8_t>(16, 17), 16);
  EXPECT_EQ(math::wrap_add(true, true), true);
}

TEST(Math, dual_numbers_carry_the_derivative) {
  using D = math::Dual<double>;
  const D x(0.7, 1.0);
  const D y = math::exp(x * x) / (D(1.0) + math::tanh(x));
  const double e = std::exp(0.49), t = std::tanh(0.7);
  EXPECT_DOUBLE_EQ(y.v, e / (1 + t));
  // (e^(x^2))' = 2x e^(x^2); quotient rule with tanh' = 1 - tanh^2.
  EXPECT_NEAR(y.d, (1.4 * e * (1 + t) - e * (1 - t * t)) / ((1 + t) * (1 + t)), 1e-14);
  const D cubed = math::pow(D(0.0, 1.0), D(3.0));
  EXPECT_EQ(cubed.d, 0.0);
}

}  // namespace
}  // namespace tarn
