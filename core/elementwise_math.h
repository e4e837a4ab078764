// elementwise_math.h - unary functors: arithmetic, powers, exponentials, trigonometry, rounding.
//
// Values, subgradients and behaviour at NaN and infinity are PyTorch's, except where noted.
#pragma once

#include "tarn/core/elementwise_base.h"

namespace tarn::ops {

// Arithmetic. Integers wrap.

struct Neg : UnaryBase<Saves::kNone, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return math::negate(x);
  }
  template <class T>
  static TARN_HD T grad(T, const Scalars&) {
    return T(-1.0);
  }
};

/// Slope 0 at 0.
struct Abs : UnaryBase<Saves::kInput, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    if constexpr (std::is_integral_v<T>) {
      return math::is_negative(x) ? math::negate(x) : x;
    } else {
      return math::abs(x);
    }
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    return x > T(0.0) ? T(1.0) : (x < T(0.0) ? T(-1.0) : T(0.0));
  }
};

/// -1, 0 or 1; 0 for NaN.
struct Sign : StepBase<> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return x > T(0) ? T(1) : (math::is_negative(x) ? T(0) - T(1) : T(0));
  }
};

struct Square : UnaryBase<Saves::kInput, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return math::wrap_mul(x, x);
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    return x + x;
  }
};

/// x + s0.
struct AddScalar : UnaryBase<Saves::kNone, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return math::wrap_add(x, s.get<T>(0));
  }
  template <class T>
  static TARN_HD T grad(T, const Scalars&) {
    return T(1.0);
  }
};

/// x * s0.
struct MulScalar : UnaryBase<Saves::kNone, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return math::wrap_mul(x, s.get<T>(0));
  }
  template <class T>
  static TARN_HD T grad(T, const Scalars& s) {
    return s.get<T>(0);
  }
};

/// x / s0: a true division, not a product with the reciprocal.
struct DivScalar : UnaryBase<Saves::kNone> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return x / s.get<T>(0);
  }
  template <class T>
  static TARN_HD T grad(T, const Scalars& s) {
    return T(1.0) / s.get<T>(0);
  }
};

/// s0 / x.
struct RdivScalar : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return s.get<T>(0) / x;
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    return -s.get<T>(0) / (x * x);
  }
};

/// x * s0 + s1. With s0 = -1 this is "scalar minus tensor".
struct Affine : UnaryBase<Saves::kNone, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return math::wrap_add(math::wrap_mul(x, s.get<T>(0)), s.get<T>(1));
  }
  template <class T>
  static TARN_HD T grad(T, const Scalars& s) {
    return s.get<T>(0);
  }
};

// A functor that is one call: value, what it saves, and the slope from that (named v).
#define TARN_SIMPLE_UNARY(Name, saved, value, slope) \
  struct Name : UnaryBase<Saves::saved> {            \
    template <class T>                               \
    static TARN_HD T fwd(T x, const Scalars&) {      \
      return value;                                  \
    }                                                \
    template <class T>                               \
    static TARN_HD T grad(T v, const Scalars&) {     \
      return slope;                                  \
    }                                                \
  };

TARN_SIMPLE_UNARY(Sqrt, kOutput, math::sqrt(x), T(0.5) / v)
TARN_SIMPLE_UNARY(Rsqrt, kOutput, math::rsqrt(x), T(-0.5) * (v * v * v))
TARN_SIMPLE_UNARY(Reciprocal, kOutput, T(1.0) / x, -(v* v))
TARN_SIMPLE_UNARY(Exp, kOutput, math::exp(x), v)
TARN_SIMPLE_UNARY(Exp2, kOutput, math::exp2(x), v* T(0.6931471805599453))
TARN_SIMPLE_UNARY(Expm1, kOutput, math::expm1(x), v + T(1.0))
TARN_SIMPLE_UNARY(Log, kInput, math::log(x), T(1.0) / v)
TARN_SIMPLE_UNARY(Log2, kInput, math::log2(x), T(1.4426950408889634) / v)
TARN_SIMPLE_UNARY(Log10, kInput, math::log10(x), T(0.4342944819032518) / v)
TARN_SIMPLE_UNARY(Log1p, kInput, math::log1p(x), T(1.0) / (v + T(1.0)))
TARN_SIMPLE_UNARY(Sin, kInput, math::sin(x), math::cos(v))
TARN_SIMPLE_UNARY(Cos, kInput, math::cos(x), -math::sin(v))
TARN_SIMPLE_UNARY(Tan, kOutput, math::tan(x), T(1.0) + v * v)
TARN_SIMPLE_UNARY(Asin, kInput, math::asin(x), math::rsqrt(T(1.0) - v * v))
TARN_SIMPLE_UNARY(Acos, kInput, math::acos(x), -math::rsqrt(T(1.0) - v * v))
TARN_SIMPLE_UNARY(Atan, kInput, math::atan(x), T(1.0) / (T(1.0) + v * v))
TARN_SIMPLE_UNARY(Sinh, kInput, math::sinh(x), math::cosh(v))
TARN_SIMPLE_UNARY(Cosh, kInput, math::cosh(x), math::sinh(v))
TARN_SIMPLE_UNARY(Tanh, kOutput, math::tanh(x), T(1.0) - v * v)
TARN_SIMPLE_UNARY(Asinh, kInput, math::asinh(x), math::rsqrt(v* v + T(1.0)))
TARN_SIMPLE_UNARY(Acosh, kInput, math::acosh(x), math::rsqrt(v* v - T(1.0)))
TARN_SIMPLE_UNARY(Atanh, kInput, math::atanh(x), T(1.0) / (T(1.0) - v * v))
TARN_SIMPLE_UNARY(Erf, kInput, math::erf(x), T(1.1283791670955126) * math::exp(-(v * v)))
TARN_SIMPLE_UNARY(Erfc, kInput, math::erfc(x), T(-1.1283791670955126) * math::exp(-(v * v)))

/// x^s0. Exponent 0 gives value 1 and slope 0 everywhere.
struct PowScalar : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return math::pow(x, s.get<T>(0));
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    const T e = s.get<T>(0);
    const T slope = e * math::pow(x, e - T(1.0));
    return e == T(0.0) ? T(0.0) : slope;
  }
  template <int N, class T>
  static TARN_HD T high_order(T x, const Scalars& s) {
    const T e = s.get<T>(0);
    T factor = e;
    for (int i = 1; i < N; ++i) factor *= e - T(i);
    return factor == T(0.0) ? T(0.0) : factor * math::pow(x, e - T(N));
  }
};

/// s0^x.
struct RpowScalar : UnaryBase<Saves::kOutput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return math::pow(s.get<T>(0), x);
  }
  template <class T>
  static TARN_HD T grad(T y, const Scalars& s) {
    const T base = s.get<T>(0), slope = y * math::log(base);
    // 0^x: 0 and not y * -inf, also at x = 0 where y is 1.
    return y == T(0.0) || (base == T(0.0) && y == T(1.0)) ? T(0.0) : slope;
  }
};

// Rounding. Integers stay as they are.
#define TARN_ROUNDING(Name, value)              \
  struct Name : StepBase<> {                    \
    template <class T>                          \
    static TARN_HD T fwd(T x, const Scalars&) { \
      if constexpr (std::is_integral_v<T>) {    \
        return x;                               \
      } else {                                  \
        return value;                           \
      }                                         \
    }                                           \
  };
TARN_ROUNDING(Floor, math::floor(x))
TARN_ROUNDING(Ceil, math::ceil(x))
TARN_ROUNDING(Trunc, math::trunc(x))
TARN_ROUNDING(Round, math::rint(x))  // ties to even
#undef TARN_ROUNDING

/// x - trunc(x).
struct Frac : UnaryBase<Saves::kNone> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return x - math::trunc(x);
  }
  template <class T>
  static TARN_HD T grad(T, const Scalars&) {
    return T(1.0);
  }
};

struct LogicalNot : DiscreteBase<Domain::kAny, true> {
  template <class T>
  static TARN_HD bool fwd(T x, const Scalars&) {
    return !(x != T(0));
  }
};

/// ~x; on bool the logical not.
struct BitwiseNot : DiscreteBase<Domain::kIntegral, false> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    if constexpr (std::is_same_v<T, bool>) {
      return !x;
    } else {
      return static_cast<T>(~x);
    }
  }
};

struct IsNan : DiscreteBase<Domain::kAny, true> {
  template <class T>
  static TARN_HD bool fwd(T x, const Scalars&) {
    return math::is_nan(x);
  }
};

struct IsInf : DiscreteBase<Domain::kAny, true> {
  template <class T>
  static TARN_HD bool fwd(T x, const Scalars&) {
    if constexpr (std::is_integral_v<T>) {
      return false;
    } else {
      return math::abs(x) > T(std::numeric_limits<T>::max());
    }
  }
};

struct IsFinite : DiscreteBase<Domain::kAny, true> {
  template <class T>
  static TARN_HD bool fwd(T x, const Scalars&) {
    if constexpr (std::is_integral_v<T>) {
      return true;
    } else {
      return math::abs(x) <= T(std::numeric_limits<T>::max());
    }
  }
};

}  // namespace tarn::ops
