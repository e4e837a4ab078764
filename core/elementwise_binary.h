// elementwise_binary.h - binary and ternary functors; their gradients are written with public ops.
//
// Integers wrap. Integer division by zero, which the raw layer rejects where it can see it, gives
// 0 here instead of a trap. On bool, + is or, * is and.
#pragma once

#include "tarn/core/elementwise_base.h"

namespace tarn::ops {

/// Base of binary functors: template <class T> static R fwd(T a, T b), R bool if predicate.
template <Domain kDomain, bool kPredicate = false>
struct BinaryBase {
  static constexpr Domain domain = kDomain;
  static constexpr bool predicate = kPredicate;
};

struct Add : BinaryBase<Domain::kAny> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    return math::wrap_add(a, b);
  }
};

struct Sub : BinaryBase<Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    return math::wrap_sub(a, b);
  }
};

struct Mul : BinaryBase<Domain::kAny> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a & b;
    } else {
      return math::wrap_mul(a, b);
    }
  }
};

/// True division; integers are promoted to floating before.
struct Div : BinaryBase<Domain::kFloating> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    return a / b;
  }
};

/// a / b rounded towards zero; integers: b = 0 gives 0, min / -1 wraps to min.
struct TruncDiv : BinaryBase<Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == T(0)) return T(0);
      if constexpr (std::is_signed_v<T>) {
        if (b == T(-1)) return math::negate(a);
      }
      return static_cast<T>(a / b);
    } else {
      return math::trunc(a / b);
    }
  }
};

/// Remainder with the sign of a, as C's fmod and %; integers: b = 0 gives 0.
struct Fmod : BinaryBase<Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == T(0)) return T(0);
      if constexpr (std::is_signed_v<T>) {
        if (b == T(-1)) return T(0);
      }
      return static_cast<T>(a % b);
    } else {
      return math::fmod(a, b);
    }
  }
};

/// Remainder with the sign of b, as Python's %; integers: b = 0 gives 0.
struct Remainder : BinaryBase<Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    const T r = Fmod::fwd(a, b);
    return (r != T(0)) & (math::is_negative(r) != math::is_negative(b)) ? static_cast<T>(r + b) : r;
  }
};

/// a / b rounded down, as Python's //: computed from fmod, so it agrees with remainder where a / b
/// itself would round up to an integer. Integers: b = 0 gives 0.
struct FloorDiv : BinaryBase<Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      const T q = TruncDiv::fwd(a, b);
      const T r = Fmod::fwd(a, b);
      return (r != T(0)) & (math::is_negative(r) != math::is_negative(b)) ? static_cast<T>(q - 1)
                                                                          : q;
    } else {
      const T ratio = a / b;
      const T r = math::fmod(a, b);
      T q = (a - r) / b;
      q = (r != T(0)) & (math::is_negative(r) != math::is_negative(b)) ? q - T(1) : q;
      const T down = math::floor(q);
      const T nearest = q - down > T(0.5) ? down + T(1) : down;
      const T result = q == T(0) ? math::copysign(T(0), ratio) : nearest;
      return b == T(0) ? ratio : result;
    }
  }
};

/// a^b. Integers wrap; a negative exponent gives 1 for a = 1, +-1 for a = -1, else 0.
struct Pow : BinaryBase<Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (math::is_negative(b)) {
        if (a == T(1)) return T(1);
        return a == math::negate(T(1)) ? ((b & T(1)) != 0 ? a : T(1)) : T(0);
      }
      T result = T(1);
      for (T n = b; n != T(0); n = static_cast<T>(n >> 1)) {
        if ((n & T(1)) != 0) result = math::wrap_mul(result, a);
        a = math::wrap_mul(a, a);
      }
      return result;
    } else {
      return math::pow(a, b);
    }
  }
};

/// NaN if either is NaN.
struct Maximum : BinaryBase<Domain::kAny> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    return (a >= b) | math::is_nan(a) ? a : b;
  }
};
struct Minimum : BinaryBase<Domain::kAny> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    return (a <= b) | math::is_nan(a) ? a : b;
  }
};

/// The angle of the point (b, a).
struct Atan2 : BinaryBase<Domain::kFloating> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    return math::atan2(a, b);
  }
};

#define TARN_COMPARISON(Name, expression)        \
  struct Name : BinaryBase<Domain::kAny, true> { \
    template <class T>                           \
    static TARN_HD bool fwd(T a, T b) {          \
      return expression;                         \
    }                                            \
  };
TARN_COMPARISON(Eq, a == b)
TARN_COMPARISON(Ne, a != b)
TARN_COMPARISON(Lt, a < b)
TARN_COMPARISON(Le, a <= b)
TARN_COMPARISON(Gt, a > b)
TARN_COMPARISON(Ge, a >= b)
TARN_COMPARISON(LogicalAnd, (a != T(0)) & (b != T(0)))
TARN_COMPARISON(LogicalOr, (a != T(0)) | (b != T(0)))
TARN_COMPARISON(LogicalXor, (a != T(0)) != (b != T(0)))
#undef TARN_COMPARISON

#define TARN_BITWISE(Name, operation)           \
  struct Name : BinaryBase<Domain::kIntegral> { \
    template <class T>                          \
    static TARN_HD T fwd(T a, T b) {            \
      return static_cast<T>(a operation b);     \
    }                                           \
  };
TARN_BITWISE(BitwiseAnd, &)
TARN_BITWISE(BitwiseOr, |)
TARN_BITWISE(BitwiseXor, ^)
#undef TARN_BITWISE

/// a << b; 0 if b is negative or not below the width of T. bool is not shifted: a where b is 0.
struct LeftShift : BinaryBase<Domain::kIntegral> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a & !b;
    } else {
      constexpr int kBits = 8 * sizeof(T);
      const bool inside = !math::is_negative(b) & (b < T(kBits));
      const T shift = inside ? b : T(0);
      const T shifted = static_cast<T>(static_cast<math::WrapType<T>>(a) << shift);
      return inside ? shifted : T(0);
    }
  }
};

/// a >> b, keeping the sign; a shift outside the width of T shifts everything out.
struct RightShift : BinaryBase<Domain::kIntegral> {
  template <class T>
  static TARN_HD T fwd(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a & !b;
    } else {
      constexpr int kBits = 8 * sizeof(T);
      const bool inside = !math::is_negative(b) & (b < T(kBits));
      const T shift = inside ? b : T(kBits - 1);
      const T shifted = static_cast<T>(a >> shift);
      return !inside & !math::is_negative(a) ? T(0) : shifted;
    }
  }
};

/// Base of ternary functors: template <class T> static T fwd(T a, T b, T c, const Scalars& s).
template <Domain kDomain>
struct TernaryBase {
  static constexpr Domain domain = kDomain;
};

/// a + s0 * b * c.
struct Addcmul : TernaryBase<Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T a, T b, T c, const Scalars& s) {
    return math::wrap_add(a, math::wrap_mul(math::wrap_mul(s.get<T>(0), b), c));
  }
};

/// a + s0 * b / c.
struct Addcdiv : TernaryBase<Domain::kFloating> {
  template <class T>
  static TARN_HD T fwd(T a, T b, T c, const Scalars& s) {
    return a + s.get<T>(0) * b / c;
  }
};

/// a + c (b - a), from the nearer end, so that c = 0 gives a and c = 1 gives b exactly.
struct Lerp : TernaryBase<Domain::kFloating> {
  template <class T>
  static TARN_HD T fwd(T a, T b, T c, const Scalars&) {
    const T from_a = a + c * (b - a);
    const T from_b = b - (b - a) * (T(1.0) - c);
    return math::abs(c) < T(0.5) ? from_a : from_b;
  }
};

/// a + s0 * b; c is not used and may repeat b.
struct AddScaled : TernaryBase<Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T a, T b, T, const Scalars& s) {
    return math::wrap_add(a, math::wrap_mul(s.get<T>(0), b));
  }
};

/// Scalar weight: lerp(a, b, s0); c is not used and may repeat b.
struct LerpScalar : TernaryBase<Domain::kFloating> {
  template <class T>
  static TARN_HD T fwd(T a, T b, T, const Scalars& s) {
    return Lerp::fwd(a, b, s.get<T>(0), s);
  }
};

}  // namespace tarn::ops
