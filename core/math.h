// math.h - the scalar functions that elementwise operators are written with, for float and double.
//
// One overload set for the CPU's loops and for CUDA kernels. On the host the float versions are
// the vectorising ones of math_float.h and math_wide.h, and double goes to the C library; on the
// device both go to CUDA's library. dual.h adds overloads for dual numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tarn/core/hd.h"
#include "tarn/core/math_wide.h"

namespace tarn::math {

// float: our own on the host, CUDA's on the device. double: the C library.
#if defined(__CUDA_ARCH__)
#define TARN_MATH_OWN(name)     \
  TARN_HD float name(float x) { \
    return ::name##f(x);        \
  }
#else
#define TARN_MATH_OWN(name)     \
  TARN_HD float name(float x) { \
    return vec::name(x);        \
  }
#endif
#define TARN_MATH_C(name)       \
  TARN_HD float name(float x) { \
    return ::name##f(x);        \
  }
#define TARN_MATH_C_DOUBLE(name)  \
  TARN_HD double name(double x) { \
    return ::name(x);             \
  }

// clang-format off
#define TARN_MATH_OWN_LIST(X)                                                        \
  X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(tanh) X(erf) X(erfc)    \
  X(sin) X(cos) X(tan)
#define TARN_MATH_C_LIST(X)                                                          \
  X(sqrt) X(floor) X(ceil) X(trunc) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(asinh) \
  X(acosh) X(atanh)
// clang-format on

TARN_MATH_OWN_LIST(TARN_MATH_OWN)
TARN_MATH_OWN_LIST(TARN_MATH_C_DOUBLE)
TARN_MATH_C_LIST(TARN_MATH_C)
TARN_MATH_C_LIST(TARN_MATH_C_DOUBLE)

#undef TARN_MATH_OWN
#undef TARN_MATH_C
#undef TARN_MATH_C_DOUBLE
#undef TARN_MATH_OWN_LIST
#undef TARN_MATH_C_LIST

#if defined(__CUDA_ARCH__)
TARN_HD float pow(float x, float y) {
  return ::powf(x, y);
}
TARN_HD float sigmoid(float x) {
  const float e = ::expf(-::fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
#else
TARN_HD float pow(float x, float y) {
  return vec::pow(x, y);
}
TARN_HD float sigmoid(float x) {
  return vec::sigmoid(x);
}
#endif
TARN_HD double pow(double x, double y) {
  return ::pow(x, y);
}
TARN_HD double sigmoid(double x) {
  const double e = ::exp(-::fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

TARN_HD float rsqrt(float x) {
  return 1.0f / ::sqrtf(x);
}
TARN_HD double rsqrt(double x) {
  return 1.0 / ::sqrt(x);
}
/// Nearest integer, ties to even.
TARN_HD float rint(float x) {
  return ::rintf(x);
}
TARN_HD double rint(double x) {
  return ::rint(x);
}
TARN_HD float fmod(float x, float y) {
  return ::fmodf(x, y);
}
TARN_HD double fmod(double x, double y) {
  return ::fmod(x, y);
}
TARN_HD float atan2(float y, float x) {
  return ::atan2f(y, x);
}
TARN_HD double atan2(double y, double x) {
  return ::atan2(y, x);
}
TARN_HD float copysign(float x, float y) {
  return ::copysignf(x, y);
}
TARN_HD double copysign(double x, double y) {
  return ::copysign(x, y);
}
TARN_HD float abs(float x) {
  return ::fabsf(x);
}
TARN_HD double abs(double x) {
  return ::fabs(x);
}

// Integer arithmetic that wraps round instead of overflowing. bool: + is or, * is and.

/// The unsigned type in which T's arithmetic wraps.
template <class T>
using WrapType = std::conditional_t<(sizeof(T) <= 4), uint32_t, uint64_t>;

template <class T>
TARN_HD T wrap_add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<WrapType<T>>(a) + static_cast<WrapType<T>>(b));
  } else {
    return a + b;
  }
}
template <class T>
TARN_HD T wrap_sub(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<WrapType<T>>(a) - static_cast<WrapType<T>>(b));
  } else {
    return a - b;
  }
}
template <class T>
TARN_HD T wrap_mul(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<WrapType<T>>(a) * static_cast<WrapType<T>>(b));
  } else {
    return a * b;
  }
}

/// -x; the smallest integer stays itself. Not 0 - x, which would lose the sign of zero.
template <class T>
TARN_HD T negate(T x) {
  if constexpr (std::is_integral_v<T>) {
    return wrap_sub(T(0), x);
  } else {
    return -x;
  }
}

/// x < 0; false for unsigned types and bool.
template <class T>
TARN_HD bool is_negative(T x) {
  if constexpr (std::is_integral_v<T> && !std::is_signed_v<T>) {
    return false;
  } else {
    return x < T(0);
  }
}

/// True for NaN; false for every integer.
template <class T>
TARN_HD bool is_nan(const T& x) {
  if constexpr (std::is_integral_v<T>) {
    return false;
  } else {
    return x != x;
  }
}

}  // namespace tarn::math
