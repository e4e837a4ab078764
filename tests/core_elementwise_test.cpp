// core_elementwise_test.cpp - elementwise functors: values, derivatives of order 1..3, edges.
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tarn/core/elementwise.h"

namespace tarn {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// One set of parameters that every operator can live with: no kink on a test point.
constexpr Scalars kParameters{{0.6, 1.3, 0.8, 0.0}};

template <class Op>
double value(double x, const Scalars& s = kParameters) {
  return Op::template fwd<double>(x, s);
}

/// What derivative() is evaluated at: x, or y = Op(x) where the slope's formula reads the output.
template <class Op>
double saved_at(double x) {
  return Op::saves == Saves::kOutput ? value<Op>(x) : x;
}

/// derivative() of order N at x.
template <class Op, int N = 1>
double slope(double x, const Scalars& s = kParameters) {
  return derivative<Op, N>(Op::saves == Saves::kOutput ? value<Op>(x, s) : x, s);
}

/// Order 1 against the central difference of the value in x; a higher order against that of the
/// order below in the saved variable. Richardson-extrapolated.
template <class Op, int N>
void check_order(const char* name) {
  int checked = 0;
  for (double x : {-2.7, -1.45, -0.85, -0.35, 0.15, 0.45, 0.75, 1.15, 1.85, 2.9, 3.7}) {
    if (N > 1 && Op::saves == Saves::kOutput && value<Op>(x + 1e-3) == value<Op>(x - 1e-3)) {
      // The output stays put, so the saved variable sits on its own kink.
      EXPECT_EQ((derivative<Op, N>(saved_at<Op>(x), kParameters)), 0.0) << name << " at " << x;
      continue;
    }
    const auto below = [&](double h) {
      if constexpr (N == 1) {
        return value<Op>(x + h);
      } else {
        return derivative<Op, N - 1>(saved_at<Op>(x) + h, kParameters);
      }
    };
    const auto central = [&](double h) { return (below(h) - below(-h)) / (2 * h); };
    const double numeric = (4 * central(5e-4) - central(1e-3)) / 3;
    if (!std::isfinite(numeric)) continue;  // outside the operator's domain
    const double got = derivative<Op, N>(saved_at<Op>(x), kParameters);
    EXPECT_NEAR(got, numeric, 1e-7 * (1 + std::abs(numeric)))
        << name << ", order " << N << " at " << x;
    ++checked;
  }
  EXPECT_GE(checked, 3) << name;
}

TEST(Elementwise, derivatives_match_finite_differences_up_to_order_three) {
#define TARN_CHECK_OP(Name, name)            \
  if constexpr (ops::Name::differentiable) { \
    if (std::string(name) != "sign") {       \
      check_order<ops::Name, 1>(name);       \
      check_order<ops::Name, 2>(name);       \
      check_order<ops::Name, 3>(name);       \
    }                                        \
  }
  TARN_UNARY_OPS(TARN_CHECK_OP)
#undef TARN_CHECK_OP
}

TEST(Elementwise, float_values_follow_double_ones) {
  // Through the vectorising float functions on one side and the C library on the other.
#define TARN_CHECK_OP(Name, name)                                                   \
  if constexpr (in_domain<float>(ops::Name::domain) && !ops::Name::predicate) {     \
    for (float x : {-4.2f, -1.3f, -0.4f, 0.3f, 0.9f, 1.7f, 3.4f}) {                 \
      const double want = value<ops::Name>(x);                                      \
      const float got = ops::Name::template fwd<float>(x, kParameters);             \
      if (std::isnan(want)) {                                                       \
        EXPECT_TRUE(std::isnan(got)) << name << " at " << x;                        \
      } else {                                                                      \
        EXPECT_NEAR(got, want, 1e-6 * (1 + std::abs(want))) << name << " at " << x; \
      }                                                                             \
    }                                                                               \
  }
  TARN_UNARY_OPS(TARN_CHECK_OP)
#undef TARN_CHECK_OP
}

TEST(Elementwise, nan_passes_through_every_operator_on_floats) {
#define TARN_CHECK_OP(Name, name)                                                     \
  if constexpr (in_domain<float>(ops::Name::domain) && !ops::Name::predicate) {       \
    const bool passes = std::isnan(ops::Name::template fwd<float>(NAN, kParameters)); \
    EXPECT_EQ(passes, std::string(name) != "sign") << name;                           \
  }
  TARN_UNARY_OPS(TARN_CHECK_OP)
#undef TARN_CHECK_OP
}

TEST(Elementwise, values_match_their_formulas) {
  const double x = 0.8;
  EXPECT_DOUBLE_EQ(value<ops::Gelu>(x), x * 0.5 * std::erfc(-x / std::sqrt(2.0)));
  EXPECT_DOUBLE_EQ(value<ops::Silu>(x), x / (1 + std::exp(-x)));
  EXPECT_DOUBLE_EQ(value<ops::Mish>(x), x * std::tanh(std::log1p(std::exp(x))));
  EXPECT_DOUBLE_EQ(value<ops::Mish>(50.0), 50.0);
  EXPECT_DOUBLE_EQ(value<ops::Softplus>(x), std::log1p(std::exp(0.6 * x)) / 0.6);
  EXPECT_DOUBLE_EQ(value<ops::Softplus>(3.0), 3.0);  // 0.6 * 3 > 1.3, the threshold
  EXPECT_DOUBLE_EQ(value<ops::LogSigmoid>(-800.0), -800.0);
  EXPECT_DOUBLE_EQ(value<ops::Selu>(-1.0),
                   1.0507009873554805 * 1.6732632423543772 * std::expm1(-1.0));
  EXPECT_DOUBLE_EQ(value<ops::Celu>(-1.0), 0.6 * std::expm1(-1.0 / 0.6));
  EXPECT_DOUBLE_EQ(value<ops::Softshrink>(-1.0), -0.4);
  EXPECT_DOUBLE_EQ(value<ops::Hardswish>(1.0), 4.0 / 6.0);
  EXPECT_DOUBLE_EQ(value<ops::Round>(2.5), 2.0);
  EXPECT_DOUBLE_EQ(value<ops::Round>(-1.5), -2.0);
  EXPECT_DOUBLE_EQ(value<ops::Frac>(-1.25), -0.25);
}

TEST(Elementwise, subgradients_are_pytorchs) {
  EXPECT_EQ((slope<ops::Relu, 1>(0.0)), 0.0);
  EXPECT_EQ((slope<ops::Abs, 1>(0.0)), 0.0);
  const Scalars box{{-1.0, 1.0, 0.0, 0.0}};
  EXPECT_EQ((slope<ops::Clamp, 1>(-1.0, box)), 1.0);
  EXPECT_EQ((slope<ops::Clamp, 1>(1.0, box)), 1.0);
  EXPECT_EQ((slope<ops::Hardtanh, 1>(-1.0, box)), 0.0);
  EXPECT_EQ((slope<ops::Hardtanh, 1>(1.0, box)), 0.0);
  EXPECT_EQ((slope<ops::Relu6, 1>(6.0)), 0.0);
  EXPECT_EQ((slope<ops::LeakyRelu, 1>(0.0)), 0.6);
  EXPECT_EQ((slope<ops::Hardsigmoid, 1>(3.0)), 0.0);
  EXPECT_DOUBLE_EQ((slope<ops::Hardswish, 1>(-3.0)), -0.5);
  EXPECT_DOUBLE_EQ((slope<ops::Hardswish, 1>(3.0)), 1.5);
  EXPECT_EQ((slope<ops::Threshold, 1>(0.6)), 0.0);
  EXPECT_EQ((slope<ops::Hardshrink, 1>(0.6)), 0.0);
}

TEST(Elementwise, clamp_takes_one_bound_and_crossed_bounds) {
  EXPECT_EQ(value<ops::Clamp>(-5.0, {{-kInf, 1.0, 0, 0}}), -5.0);
  EXPECT_EQ(value<ops::Clamp>(5.0, {{-kInf, 1.0, 0, 0}}), 1.0);
  EXPECT_EQ(value<ops::Clamp>(0.0, {{3.0, 2.0, 0, 0}}), 2.0);
  EXPECT_EQ(ops::Clamp::fwd<int64_t>(7, {{-kInf, 5.0, 0, 0}}), 5);
  EXPECT_EQ(ops::Clamp::fwd<int32_t>(-7, {{-kInf, kInf, 0, 0}}), -7);
}

TEST(Elementwise, powers_have_finite_derivatives_at_zero) {
  const Scalars square{{2.0, 0, 0, 0}};
  EXPECT_EQ((slope<ops::PowScalar, 1>(0.0, square)), 0.0);
  EXPECT_EQ((slope<ops::PowScalar, 2>(0.0, square)), 2.0);
  EXPECT_EQ((slope<ops::PowScalar, 3>(0.0, square)), 0.0);
  EXPECT_EQ((slope<ops::PowScalar, 1>(0.0, {{0.0, 0, 0, 0}})), 0.0);
  EXPECT_EQ((slope<ops::RpowScalar, 1>(2.0, {{0.0, 0, 0, 0}})), 0.0);
}

TEST(Elementwise, a_closed_gate_lets_no_infinity_through) {
  EXPECT_EQ((backward<ops::Relu, 1>(kInf, 0.0, kParameters)), 0.0);
  EXPECT_EQ((backward<ops::Clamp, 1>(kNan, 9.0, kParameters)), 0.0);
  EXPECT_EQ((backward<ops::Relu, 1>(kInf, 2.0, kParameters)), kInf);
}

TEST(Elementwise, division_of_integers_follows_python_and_never_traps) {
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(ops::FloorDiv::fwd(-7, 2), -4);
  EXPECT_EQ(ops::FloorDiv::fwd(7, -2), -4);
  EXPECT_EQ(ops::TruncDiv::fwd(-7, 2), -3);
  EXPECT_EQ(ops::Remainder::fwd(-7, 2), 1);
  EXPECT_EQ(ops::Remainder::fwd(7, -2), -1);
  EXPECT_EQ(ops::Fmod::fwd(-7, 2), -1);
  EXPECT_EQ(ops::FloorDiv::fwd(5, 0), 0);
  EXPECT_EQ(ops::Remainder::fwd(5, 0), 0);
  EXPECT_EQ(ops::TruncDiv::fwd(kMin, -1), kMin);
  EXPECT_EQ(ops::Remainder::fwd(kMin, -1), 0);
  EXPECT_EQ(ops::FloorDiv::fwd<uint8_t>(250, 7), 35);
}

TEST(Elementwise, division_of_floats_follows_python) {
  EXPECT_EQ(ops::FloorDiv::fwd(-7.0, 2.0), -4.0);
  EXPECT_EQ(ops::FloorDiv::fwd(1.0, 0.1), 9.0);  // Python's 1.0 // 0.1, though 1.0 / 0.1 is 10
  EXPECT_EQ(ops::FloorDiv::fwd(1.0, 0.0), kInf);
  EXPECT_TRUE(std::signbit(ops::FloorDiv::fwd(-0.0, 3.0)));
  EXPECT_EQ(ops::Remainder::fwd(-7.5, 2.0), 0.5);
  EXPECT_EQ(ops::Remainder::fwd(7.5, -2.0), -0.5);
  EXPECT_EQ(ops::Fmod::fwd(-7.5, 2.0), -1.5);
  EXPECT_TRUE(std::isnan(ops::Remainder::fwd(1.0, 0.0)));
}

TEST(Elementwise, maximum_and_minimum_pass_nan_from_either_side) {
  EXPECT_TRUE(std::isnan(ops::Maximum::fwd(kNan, 1.0)));
  EXPECT_TRUE(std::isnan(ops::Maximum::fwd(1.0, kNan)));
  EXPECT_TRUE(std::isnan(ops::Minimum::fwd(kNan, 1.0)));
  EXPECT_TRUE(std::isnan(ops::Minimum::fwd(1.0, kNan)));
  EXPECT_EQ(ops::Maximum::fwd(-kInf, 1.0), 1.0);
  EXPECT_EQ(ops::Minimum::fwd(true, false), false);
}

TEST(Elementwise, integer_powers_and_shifts) {
  EXPECT_EQ(ops::Pow::fwd(3, 4), 81);
  EXPECT_EQ(ops::Pow::fwd(-2, 3), -8);
  EXPECT_EQ(ops::Pow::fwd(2, -1), 0);
  EXPECT_EQ(ops::Pow::fwd(-1, -3), -1);
  EXPECT_EQ(ops::Pow::fwd<int32_t>(3, 21), 1870418611);  // 3^21 mod 2^32 = 10460353203 - 2 * 2^32
  EXPECT_EQ(ops::LeftShift::fwd(1, 31), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(ops::LeftShift::fwd(1, 32), 0);
  EXPECT_EQ(ops::LeftShift::fwd(1, -1), 0);
  EXPECT_EQ(ops::RightShift::fwd(-8, 1), -4);
  EXPECT_EQ(ops::RightShift::fwd(-8, 99), -1);
  EXPECT_EQ(ops::RightShift::fwd<uint8_t>(200, 9), 0);
}

TEST(Elementwise, lerp_is_exact_at_both_ends) {
  EXPECT_EQ(ops::Lerp::fwd(1e20f, 1.0f, 1.0f, kParameters), 1.0f);
  EXPECT_EQ(ops::Lerp::fwd(1.0f, 1e20f, 0.0f, kParameters), 1.0f);
  EXPECT_EQ(ops::Lerp::fwd(2.0f, 4.0f, 0.25f, kParameters), 2.5f);
}

TEST(Elementwise, info_tells_the_layers_above_what_to_save) {
  static_assert(unary_info(UnaryOp::kRelu).saves == Saves::kOutput);
  static_assert(unary_info(UnaryOp::kGelu).saves == Saves::kInput);
  static_assert(unary_info(UnaryOp::kNeg).saves == Saves::kNone);
  static_assert(unary_info(UnaryOp::kIsNan).predicate);
  static_assert(!unary_info(UnaryOp::kBitwiseNot).differentiable);
  static_assert(binary_info(BinaryOp::kLt).predicate);
  EXPECT_STREQ(unary_info(UnaryOp::kHardswish).name, "hardswish");
  EXPECT_STREQ(binary_info(BinaryOp::kFloorDiv).name, "floor_div");
}

}  // namespace
}  // namespace tarn
