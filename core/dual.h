// dual.h - dual numbers: a value and its derivative, carried through every function of math.h.
//
// Second and third derivatives of elementwise operators come from evaluating their first-derivative
// formula on Dual<double> and Dual<Dual<double>>, so nobody writes them by hand. Comparisons look
// at the value, so a select takes the derivative of the branch that is chosen.
#pragma once

#include "tarn/core/hd.h"
#include "tarn/core/math.h"

namespace tarn::math {

/// v + d * epsilon with epsilon^2 = 0.
template <class T>
struct Dual {
  T v;
  T d;

  TARN_HD Dual() : v(0.0), d(0.0) {}
  TARN_HD Dual(double constant) : v(constant), d(0.0) {}  // NOLINT: constants mix in freely
  TARN_HD Dual(const T& value, const T& slope) : v(value), d(slope) {}

  friend TARN_HD Dual operator-(const Dual& a) { return {-a.v, -a.d}; }
  friend TARN_HD Dual operator+(const Dual& a, const Dual& b) { return {a.v + b.v, a.d + b.d}; }
  friend TARN_HD Dual operator-(const Dual& a, const Dual& b) { return {a.v - b.v, a.d - b.d}; }
  friend TARN_HD Dual operator*(const Dual& a, const Dual& b) {
    return {a.v * b.v, a.d * b.v + a.v * b.d};
  }
  friend TARN_HD Dual operator/(const Dual& a, const Dual& b) {
    const T q = a.v / b.v;
    return {q, (a.d - q * b.d) / b.v};
  }
  friend TARN_HD bool operator<(const Dual& a, const Dual& b) { return a.v < b.v; }
  friend TARN_HD bool operator>(const Dual& a, const Dual& b) { return a.v > b.v; }
  friend TARN_HD bool operator<=(const Dual& a, const Dual& b) { return a.v <= b.v; }
  friend TARN_HD bool operator>=(const Dual& a, const Dual& b) { return a.v >= b.v; }
  friend TARN_HD bool operator==(const Dual& a, const Dual& b) { return a.v == b.v; }
  friend TARN_HD bool operator!=(const Dual& a, const Dual& b) { return a.v != b.v; }
};

// All declared before the first body: the derivative of one calls another, on a nested Dual.
// clang-format off
#define TARN_DUAL_LIST(X)                                                                    \
  X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(tanh) X(sigmoid) X(erf) X(erfc) \
  X(sin) X(cos) X(tan) X(sqrt) X(rsqrt) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(asinh)     \
  X(acosh) X(atanh) X(floor) X(ceil) X(trunc) X(rint) X(abs)
// clang-format on
#define TARN_DUAL_DECLARE(name) \
  template <class T>            \
  TARN_HD Dual<T> name(const Dual<T>& a);
TARN_DUAL_LIST(TARN_DUAL_DECLARE)
#undef TARN_DUAL_DECLARE
#undef TARN_DUAL_LIST

// name: value y = name(a.v), slope dy/dv as an expression in v and y.
#define TARN_DUAL_FUNCTION(name, slope)    \
  template <class T>                       \
  TARN_HD Dual<T> name(const Dual<T>& a) { \
    [[maybe_unused]] const T& v = a.v;     \
    [[maybe_unused]] const T y = name(v);  \
    return {y, a.d * (slope)};             \
  }

TARN_DUAL_FUNCTION(exp, y)
TARN_DUAL_FUNCTION(exp2, y* T(0.6931471805599453))
TARN_DUAL_FUNCTION(expm1, y + T(1.0))
TARN_DUAL_FUNCTION(log, T(1.0) / v)
TARN_DUAL_FUNCTION(log2, T(1.4426950408889634) / v)
TARN_DUAL_FUNCTION(log10, T(0.4342944819032518) / v)
TARN_DUAL_FUNCTION(log1p, T(1.0) / (v + T(1.0)))
TARN_DUAL_FUNCTION(tanh, T(1.0) - y * y)
TARN_DUAL_FUNCTION(sigmoid, y*(T(1.0) - y))
TARN_DUAL_FUNCTION(erf, T(1.1283791670955126) * exp(-(v * v)))
TARN_DUAL_FUNCTION(erfc, T(-1.1283791670955126) * exp(-(v * v)))
TARN_DUAL_FUNCTION(sin, cos(v))
TARN_DUAL_FUNCTION(cos, -sin(v))
TARN_DUAL_FUNCTION(tan, T(1.0) + y * y)
TARN_DUAL_FUNCTION(sqrt, T(0.5) / y)
TARN_DUAL_FUNCTION(rsqrt, T(-0.5) * y / v)
TARN_DUAL_FUNCTION(asin, rsqrt(T(1.0) - v * v))
TARN_DUAL_FUNCTION(acos, -rsqrt(T(1.0) - v * v))
TARN_DUAL_FUNCTION(atan, T(1.0) / (T(1.0) + v * v))
TARN_DUAL_FUNCTION(sinh, cosh(v))
TARN_DUAL_FUNCTION(cosh, sinh(v))
TARN_DUAL_FUNCTION(asinh, rsqrt(v* v + T(1.0)))
TARN_DUAL_FUNCTION(acosh, rsqrt(v* v - T(1.0)))
TARN_DUAL_FUNCTION(atanh, T(1.0) / (T(1.0) - v * v))
TARN_DUAL_FUNCTION(floor, T(0.0))
TARN_DUAL_FUNCTION(ceil, T(0.0))
TARN_DUAL_FUNCTION(trunc, T(0.0))
TARN_DUAL_FUNCTION(rint, T(0.0))
TARN_DUAL_FUNCTION(abs, v > T(0.0) ? T(1.0) : (v < T(0.0) ? T(-1.0) : T(0.0)))
#undef TARN_DUAL_FUNCTION

/// a^b for a constant exponent b: its own derivative is not followed. Exponent 0 has slope 0
/// everywhere, also at a = 0, which is what makes x^2 have a finite third derivative at 0.
template <class T>
TARN_HD Dual<T> pow(const Dual<T>& a, const Dual<T>& b) {
  const T slope = b.v == T(0.0) ? T(0.0) : b.v * pow(a.v, b.v - T(1.0));
  return {pow(a.v, b.v), a.d * slope};
}

}  // namespace tarn::math
