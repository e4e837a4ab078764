// elementwise_base.h - what every elementwise functor is made of: parameters and traits.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "tarn/core/dual.h"
#include "tarn/core/math.h"

namespace tarn {

/// An operator's numbers (a slope, two bounds ...), in the order its functor documents.
struct Scalars {
  double v[4] = {0, 0, 0, 0};

  /// Number i as T. For integer T: truncated, saturated, NaN as 0, so infinite bounds work.
  template <class T>
  TARN_HD T get(int i) const {
    if constexpr (std::is_same_v<T, bool>) {
      return v[i] != 0;
    } else if constexpr (std::is_integral_v<T>) {
      constexpr T kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
      if (v[i] >= static_cast<double>(kMax)) return kMax;
      if (v[i] <= static_cast<double>(kMin)) return kMin;
      return v[i] == v[i] ? static_cast<T>(v[i]) : T(0);
    } else {
      return T(v[i]);
    }
  }
};

/// What the derivative of a unary operator is computed from.
enum class Saves : uint8_t { kNone, kInput, kOutput };

/// Element types an operator is defined for. Halves count as floating; integers include u8.
enum class Domain : uint8_t {
  kFloating,  ///< f32 f64 f16 bf16
  kNumber,    ///< floating and integers
  kAny,       ///< numbers and bool
  kIntegral,  ///< integers and bool
};

template <class T>
constexpr bool in_domain(Domain domain) {
  constexpr bool kBool = std::is_same_v<T, bool>;
  constexpr bool kInteger = std::is_integral_v<T> && !kBool;
  switch (domain) {
    case Domain::kFloating:
      return !kInteger && !kBool;
    case Domain::kNumber:
      return !kBool;
    case Domain::kIntegral:
      return kInteger || kBool;
    case Domain::kAny:
      break;
  }
  return true;
}

/// Base of unary functors. A functor has
///   template <class T> static T fwd(T x, const Scalars& s);     the value
///   template <class T> static T grad(T saved, const Scalars& s); dy/dx from what Saves names
/// written so that T can be float, double, an integer type where the domain has it, or (grad, and
/// fwd of the saving-input kind) a dual number. Halves are computed in float and rounded once.
template <Saves kSaves, Domain kDomain = Domain::kFloating>
struct UnaryBase {
  static constexpr Saves saves = kSaves;
  static constexpr Domain domain = kDomain;
  static constexpr bool differentiable = true;
  static constexpr bool predicate = false;  ///< result is bool
  /// Piecewise: where the slope is 0 the gradient is exactly 0, even if infinity or NaN comes in.
  static constexpr bool piecewise = false;
};

/// Constant between jumps: the derivative is 0 everywhere.
template <Domain kDomain = Domain::kNumber>
struct StepBase : UnaryBase<Saves::kNone, kDomain> {
  static constexpr bool piecewise = true;
  template <class T>
  static TARN_HD T grad(T, const Scalars&) {
    return T(0.0);
  }
};

template <Saves kSaves, Domain kDomain = Domain::kFloating>
struct PiecewiseBase : UnaryBase<kSaves, kDomain> {
  static constexpr bool piecewise = true;
};

/// Result bool, or on integers alone: no derivative at all.
template <Domain kDomain, bool kPredicate>
struct DiscreteBase : UnaryBase<Saves::kNone, kDomain> {
  static constexpr bool differentiable = false;
  static constexpr bool predicate = kPredicate;
};

}  // namespace tarn
