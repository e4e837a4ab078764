// elementwise_activation.h - unary functors: activations, and the piecewise operators like clamp.
//
// Formulas, subgradients and behaviour at NaN and infinity are PyTorch's, except that softshrink
// passes NaN on. kInput and kOutput as in PyTorch too: relu, sigmoid and tanh keep their output,
// which the next layer keeps alive anyway.
#pragma once

#include "tarn/core/elementwise_math.h"

namespace tarn::ops {

TARN_SIMPLE_UNARY(Sigmoid, kOutput, math::sigmoid(x), v*(T(1.0) - v))
TARN_SIMPLE_UNARY(Softsign, kInput, x / (T(1.0) + math::abs(x)),
                  T(1.0) / ((T(1.0) + math::abs(v)) * (T(1.0) + math::abs(v))))
#undef TARN_SIMPLE_UNARY

/// log(sigmoid(x)) = min(x, 0) - log(1 + e^-|x|).
struct LogSigmoid : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return (x > T(0.0) ? T(0.0) : x) - math::log1p(math::exp(-math::abs(x)));
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    return math::sigmoid(-x);
  }
};

/// max(x, 0). Slope 0 at 0.
struct Relu : PiecewiseBase<Saves::kOutput, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return math::is_negative(x) ? T(0) : x;
  }
  template <class T>
  static TARN_HD T grad(T y, const Scalars&) {
    return y <= T(0.0) ? T(0.0) : T(1.0);
  }
};

/// min(max(x, 0), 6). Slope 0 at both ends.
struct Relu6 : PiecewiseBase<Saves::kInput, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    const T t = math::is_negative(x) ? T(0) : x;
    return t > T(6) ? T(6) : t;
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    const T below = x >= T(6.0) ? T(0.0) : T(1.0);
    return x <= T(0.0) ? T(0.0) : below;
  }
};

/// min(max(x, s0), s1). Slope 0 at both ends.
struct Hardtanh : PiecewiseBase<Saves::kInput, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    const T lo = s.get<T>(0), hi = s.get<T>(1);
    const T t = x < lo ? lo : x;
    return t > hi ? hi : t;
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    const T below = x >= s.get<T>(1) ? T(0.0) : T(1.0);
    return x <= s.get<T>(0) ? T(0.0) : below;
  }
};

/// min(max(x, s0), s1): s1 where s0 > s1. Slope 1 at both ends; an infinite bound is no bound, and
/// a bound of NaN makes everything NaN.
struct Clamp : PiecewiseBase<Saves::kInput, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    const T lo = s.get<T>(0), hi = s.get<T>(1);
    const T t = x < lo || math::is_nan(lo) ? lo : x;
    return t > hi || math::is_nan(hi) ? hi : t;
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    const T below = x <= s.get<T>(1) ? T(1.0) : T(0.0);
    return x >= s.get<T>(0) ? below : T(0.0);
  }
};

/// x > s0 ? x : s1; NaN passes.
struct Threshold : PiecewiseBase<Saves::kInput, Domain::kNumber> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    const T value = s.get<T>(1);
    return x <= s.get<T>(0) ? value : x;
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    return x <= s.get<T>(0) ? T(0.0) : T(1.0);
  }
};

/// x > 0 ? x : s0 * x. Slope s0 at 0.
struct LeakyRelu : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    const T scaled = x * s.get<T>(0);
    return x > T(0.0) ? x : scaled;
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    const T slope = s.get<T>(0);
    return x > T(0.0) ? T(1.0) : slope;
  }
};

/// The family of elu: x > 0 ? positive * x : negative * (e^(rate x) - 1).
template <class T>
TARN_HD T elu_value(T x, T positive, T negative, T rate) {
  const T below = negative * math::expm1(x * rate);
  const T above = positive * x;
  return x <= T(0.0) ? below : above;
}
template <class T>
TARN_HD T elu_slope(T x, T positive, T negative, T rate) {
  const T below = negative * rate * math::exp(x * rate);
  return x <= T(0.0) ? below : positive;
}

/// x > 0 ? x : s0 * (e^x - 1).
struct Elu : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return elu_value(x, T(1.0), s.get<T>(0), T(1.0));
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    return elu_slope(x, T(1.0), s.get<T>(0), T(1.0));
  }
};

/// Elu with the self-normalising constants. Klambauer et al. 2017, arXiv:1706.02515.
struct Selu : UnaryBase<Saves::kInput> {
  static constexpr double kAlpha = 1.6732632423543772, kScale = 1.0507009873554805;
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return elu_value(x, T(kScale), T(kAlpha * kScale), T(1.0));
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    return elu_slope(x, T(kScale), T(kAlpha * kScale), T(1.0));
  }
};

/// x > 0 ? x : s0 * (e^(x / s0) - 1).
struct Celu : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return elu_value(x, T(1.0), s.get<T>(0), T(1.0 / s.v[0]));
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    return elu_slope(x, T(1.0), s.get<T>(0), T(1.0 / s.v[0]));
  }
};

/// x * Phi(x), Phi the normal distribution function. Hendrycks, Gimpel 2016, arXiv:1606.08415.
struct Gelu : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return T(0.5) * x * (T(1.0) + math::erf(x * T(0.7071067811865476)));
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    const T cdf = T(0.5) * (T(1.0) + math::erf(x * T(0.7071067811865476)));
    const T pdf = T(0.3989422804014327) * math::exp(T(-0.5) * x * x);
    return cdf + x * pdf;
  }
};

/// x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
struct GeluTanh : UnaryBase<Saves::kInput> {
  static constexpr double kBeta = 0.7978845608028654, kKappa = 0.044715;
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    const T inner = T(kBeta) * (x + T(kKappa) * (x * x * x));
    return T(0.5) * x * (T(1.0) + math::tanh(inner));
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    const T t = math::tanh(T(kBeta) * (x + T(kKappa) * (x * x * x)));
    const T inner_slope = T(kBeta) * (T(1.0) + T(3.0 * kKappa) * (x * x));
    return T(0.5) * (T(1.0) + t) + T(0.5) * x * ((T(1.0) - t * t) * inner_slope);
  }
};

/// x * sigmoid(x).
struct Silu : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return x * math::sigmoid(x);
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    const T y = math::sigmoid(x);
    return y * (T(1.0) + x * (T(1.0) - y));
  }
};

/// x * tanh(softplus(x)); with e = e^x, tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2).
struct Mish : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T gate(T x) {
    const T e = math::exp(x > T(20.0) ? T(20.0) : x);  // the gate is 1 beyond
    const T n = e * (e + T(2.0));
    return n / (n + T(2.0));
  }
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return x * gate(x);
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    const T t = gate(x);
    return t + x * (math::sigmoid(x) * (T(1.0) - t * t));
  }
};

/// s0 x > s1 ? x : log(1 + e^(s0 x)) / s0.
struct Softplus : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    const T scaled = x * s.get<T>(0);
    const T soft = math::log1p(math::exp(scaled)) / s.get<T>(0);
    return scaled > s.get<T>(1) ? x : soft;
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    const T scaled = x * s.get<T>(0);
    const T soft = math::sigmoid(scaled);
    return scaled > s.get<T>(1) ? T(1.0) : soft;
  }
};

struct Tanhshrink : UnaryBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars&) {
    return x - math::tanh(x);
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    const T t = math::tanh(x);
    return t * t;
  }
};

/// |x| <= s0 ? 0 : x.
struct Hardshrink : PiecewiseBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return math::abs(x) <= s.get<T>(0) ? T(0.0) : x;
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    return math::abs(x) <= s.get<T>(0) ? T(0.0) : T(1.0);
  }
};

/// x moved by s0 towards 0, and 0 within. NaN passes.
struct Softshrink : PiecewiseBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    const T lambda = s.get<T>(0);
    const T moved = x > T(0.0) ? x - lambda : x + lambda;
    return math::abs(x) <= lambda ? T(0.0) : moved;
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars& s) {
    return Hardshrink::grad(x, s);
  }
};

/// min(max(x + 3, 0), 6) / 6.
struct Hardsigmoid : PiecewiseBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return Relu6::fwd(x + T(3.0), s) / T(6.0);
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    return math::abs(x) < T(3.0) ? T(1.0 / 6.0) : T(0.0);
  }
};

/// x * hardsigmoid(x).
struct Hardswish : PiecewiseBase<Saves::kInput> {
  template <class T>
  static TARN_HD T fwd(T x, const Scalars& s) {
    return x * (Relu6::fwd(x + T(3.0), s) / T(6.0));  // this order does not overflow
  }
  template <class T>
  static TARN_HD T grad(T x, const Scalars&) {
    const T middle = x / T(3.0) + T(0.5);
    const T from_left = x < T(-3.0) ? T(0.0) : middle;
    return x > T(3.0) ? T(1.0) : from_left;
  }
};

}  // namespace tarn::ops
