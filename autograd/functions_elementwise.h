// functions_elementwise.h - elementwise operations, recorded. All broadcast as NumPy does.
//
// Two tensors are promoted as in PyTorch (integers with floats give floats; 0-d tensors and plain
// numbers do not widen); unary functions that leave the integers take integers to f32. Results keep
// the memory layout of their first full-size operand. Derivatives at kinks follow PyTorch: relu'(0)
// = abs'(0) = sign'(x) = 0, clamp' = 1 on the inclusive range, maximum and minimum split ties
// evenly.
#pragma once

#include "tarn/core/elementwise.h"
#include "tarn/core/tensor.h"

namespace tarn {

// ---- arithmetic
/// a + alpha * b.
Tensor add(const Tensor& a, const Tensor& b, double alpha = 1);
Tensor add(const Tensor& a, const Scalar& b);
/// a - alpha * b.
Tensor sub(const Tensor& a, const Tensor& b, double alpha = 1);
Tensor sub(const Tensor& a, const Scalar& b);
Tensor rsub(const Tensor& a, const Scalar& b);  ///< b - a
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Scalar& b);
/// True division: integers give f32.
Tensor div(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Scalar& b);
/// floor(a / b) and trunc(a / b); the gradient is 0. Integer division by zero is an error.
Tensor floor_divide(const Tensor& a, const Tensor& b);
Tensor trunc_divide(const Tensor& a, const Tensor& b);
/// a - floor(a / b) * b: the sign of b (Python's %). fmod: the sign of a (C's).
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor fmod(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& base, const Tensor& exponent);
Tensor pow(const Tensor& base, const Scalar& exponent);
Tensor pow(const Scalar& base, const Tensor& exponent);
/// Elementwise maximum and minimum; NaN wins.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor atan2(const Tensor& y, const Tensor& x);
/// start + weight * (end - start).
Tensor lerp(const Tensor& start, const Tensor& end, double weight);
/// x + value * a * b, and x + value * a / b.
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1);

inline Tensor operator+(const Tensor& a, const Tensor& b) {
  return add(a, b);
}
inline Tensor operator+(const Tensor& a, const Scalar& b) {
  return add(a, b);
}
inline Tensor operator+(const Scalar& a, const Tensor& b) {
  return add(b, a);
}
inline Tensor operator-(const Tensor& a, const Tensor& b) {
  return sub(a, b);
}
inline Tensor operator-(const Tensor& a, const Scalar& b) {
  return sub(a, b);
}
inline Tensor operator-(const Scalar& a, const Tensor& b) {
  return rsub(b, a);
}
inline Tensor operator*(const Tensor& a, const Tensor& b) {
  return mul(a, b);
}
inline Tensor operator*(const Tensor& a, const Scalar& b) {
  return mul(a, b);
}
inline Tensor operator*(const Scalar& a, const Tensor& b) {
  return mul(b, a);
}
inline Tensor operator/(const Tensor& a, const Tensor& b) {
  return div(a, b);
}
inline Tensor operator/(const Tensor& a, const Scalar& b) {
  return div(a, b);
}
Tensor operator/(const Scalar& a, const Tensor& b);

// ---- comparisons and logic: bool results, never recorded
#define TARN_COMPARISONS(X) X(Eq, eq) X(Ne, ne) X(Lt, lt) X(Le, le) X(Gt, gt) X(Ge, ge)
#define TARN_X(Enumerator, name)                 \
  Tensor name(const Tensor& a, const Tensor& b); \
  Tensor name(const Tensor& a, const Scalar& b);
TARN_COMPARISONS(TARN_X)
#undef TARN_X
// The order as operators. There is no ==: it would give a tensor where everybody expects a bool.
#define TARN_X(op, name, mirrored)                              \
  inline Tensor operator op(const Tensor& a, const Tensor& b) { \
    return name(a, b);                                          \
  }                                                             \
  inline Tensor operator op(const Tensor& a, const Scalar& b) { \
    return name(a, b);                                          \
  }                                                             \
  inline Tensor operator op(const Scalar& a, const Tensor& b) { \
    return mirrored(b, a);                                      \
  }
TARN_X(<, lt, gt)
TARN_X(<=, le, ge)
TARN_X(>, gt, lt)
TARN_X(>=, ge, le)
#undef TARN_X
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);
Tensor bitwise_and(const Tensor& a, const Tensor& b);
Tensor bitwise_or(const Tensor& a, const Tensor& b);
Tensor bitwise_xor(const Tensor& a, const Tensor& b);
/// The same sizes, dtype and values (NaN equals nothing).
bool equal(const Tensor& a, const Tensor& b);
/// |a - b| <= atol + rtol * |b| everywhere.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);

// ---- selection
/// cond ? a : b, cond bool.
Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& cond, const Tensor& a, const Scalar& b);
Tensor where(const Tensor& cond, const Scalar& a, const Tensor& b);
/// value where mask (bool) holds, else x.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value);
/// min and max may be infinite to leave a side open. NaN stays NaN. Any other floating bound takes
/// integers to f32, as in PyTorch; clamp(i64, 0, 5) stays i64.
Tensor clamp(const Tensor& x, const Scalar& min, const Scalar& max);
Tensor clamp_min(const Tensor& x, const Scalar& min);
Tensor clamp_max(const Tensor& x, const Scalar& max);

// ---- functions of one tensor without parameters. y = name(x).
// clang-format off
#define TARN_PLAIN_UNARY(X) \
  X(Neg, neg) X(Abs, abs) X(Sign, sign) X(Square, square) X(Sqrt, sqrt) X(Rsqrt, rsqrt) \
  X(Reciprocal, reciprocal) X(Exp, exp) X(Exp2, exp2) X(Expm1, expm1) X(Log, log) \
  X(Log2, log2) X(Log10, log10) X(Log1p, log1p) X(Sin, sin) X(Cos, cos) X(Tan, tan) \
  X(Asin, asin) X(Acos, acos) X(Atan, atan) X(Sinh, sinh) X(Cosh, cosh) X(Tanh, tanh) \
  X(Asinh, asinh) X(Acosh, acosh) X(Atanh, atanh) X(Erf, erf) X(Erfc, erfc) \
  X(Sigmoid, sigmoid) X(LogSigmoid, logsigmoid) X(Relu, relu) X(Relu6, relu6) X(Selu, selu) \
  X(Silu, silu) X(Mish, mish) X(Softsign, softsign) X(Tanhshrink, tanhshrink) \
  X(Hardsigmoid, hardsigmoid) X(Hardswish, hardswish) X(Floor, floor) X(Ceil, ceil) \
  X(Round, round) X(Trunc, trunc) X(Frac, frac) X(LogicalNot, logical_not) \
  X(BitwiseNot, bitwise_not) X(IsNan, isnan) X(IsInf, isinf) X(IsFinite, isfinite)
// clang-format on
#define TARN_X(Enumerator, name) Tensor name(const Tensor& x);
TARN_PLAIN_UNARY(TARN_X)
#undef TARN_X
inline Tensor operator-(const Tensor& x) {
  return neg(x);
}

// ---- activations with parameters
/// x * Phi(x) with Phi the normal distribution; tanh: 0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x^3))).
/// Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
Tensor gelu(const Tensor& x, bool tanh_approximation = false);
/// x > 0 ? x : slope * x.
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
/// x > 0 ? x : alpha * (exp(x) - 1).
Tensor elu(const Tensor& x, double alpha = 1);
/// max(0, x) + min(0, alpha * (exp(x / alpha) - 1)).
Tensor celu(const Tensor& x, double alpha = 1);
/// log(1 + exp(beta * x)) / beta, and x itself where beta * x > threshold.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
Tensor hardtanh(const Tensor& x, double min = -1, double max = 1);
Tensor hardshrink(const Tensor& x, double lambda = 0.5);
Tensor softshrink(const Tensor& x, double lambda = 0.5);
/// x > limit ? x : value.
Tensor threshold(const Tensor& x, double limit, double value);

// ---- shape of a gradient
/// Sums x back to `sizes`, which broadcast to x's: the gradient of expand.
Tensor sum_to_size(const Tensor& x, const Shape& sizes);
/// grad * the derivative of this order (1..3) of op; what the unary operations' backward calls.
Tensor unary_backward(UnaryOp op, int order, const Tensor& grad, const Tensor& saved,
                      const Scalars& s);

}  // namespace tarn
