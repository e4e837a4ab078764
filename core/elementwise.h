// elementwise.h - the lists of elementwise operators, and their derivatives up to the third.
//
// Each operator's mathematics is one functor struct (elementwise_{math,activation,binary}.h), run
// by the CPU's loops and by CUDA kernels alike. To add one: write the functor, add it to a list
// here, declare the public function. The enumerator of functor Name is kName.
#pragma once

#include "tarn/core/elementwise_activation.h"
#include "tarn/core/elementwise_binary.h"
#include "tarn/core/elementwise_math.h"

namespace tarn {

// X(Functor, "public name"). In groups, one kernel file each, to bound the compile time of a file.
// Laid out by hand: clang-format would shift the lists on every run.
// clang-format off

#define TARN_UNARY_ARITHMETIC_OPS(X)                                                 \
  X(Neg, "neg") X(Abs, "abs") X(Sign, "sign") X(Square, "square") X(Floor, "floor")  \
  X(Ceil, "ceil") X(Trunc, "trunc") X(Round, "round") X(Frac, "frac")                \
  X(AddScalar, "add_scalar") X(MulScalar, "mul_scalar") X(DivScalar, "div_scalar")   \
  X(RdivScalar, "rdiv_scalar") X(Affine, "affine") X(Relu, "relu") X(Relu6, "relu6") \
  X(Hardtanh, "hardtanh") X(Clamp, "clamp") X(Threshold, "threshold")                \
  X(LogicalNot, "logical_not") X(BitwiseNot, "bitwise_not") X(IsNan, "isnan")        \
  X(IsInf, "isinf") X(IsFinite, "isfinite")

#define TARN_UNARY_MATH_OPS(X)                                                                \
  X(Sqrt, "sqrt") X(Rsqrt, "rsqrt") X(Reciprocal, "reciprocal") X(Exp, "exp") X(Exp2, "exp2") \
  X(Expm1, "expm1") X(Log, "log") X(Log2, "log2") X(Log10, "log10") X(Log1p, "log1p")         \
  X(Sin, "sin") X(Cos, "cos") X(Tan, "tan") X(Asin, "asin") X(Acos, "acos") X(Atan, "atan")   \
  X(Sinh, "sinh") X(Cosh, "cosh") X(Tanh, "tanh") X(Asinh, "asinh") X(Acosh, "acosh")         \
  X(Atanh, "atanh") X(Erf, "erf") X(Erfc, "erfc") X(PowScalar, "pow_scalar")                  \
  X(RpowScalar, "rpow_scalar")

#define TARN_UNARY_ACTIVATION_OPS(X)                                                          \
  X(Sigmoid, "sigmoid") X(LogSigmoid, "logsigmoid") X(LeakyRelu, "leaky_relu") X(Elu, "elu")  \
  X(Selu, "selu") X(Celu, "celu") X(Gelu, "gelu") X(GeluTanh, "gelu_tanh") X(Silu, "silu")    \
  X(Mish, "mish") X(Softplus, "softplus") X(Softsign, "softsign") X(Tanhshrink, "tanhshrink") \
  X(Hardshrink, "hardshrink") X(Softshrink, "softshrink") X(Hardsigmoid, "hardsigmoid")       \
  X(Hardswish, "hardswish")

#define TARN_UNARY_OPS(X) \
  TARN_UNARY_ARITHMETIC_OPS(X) TARN_UNARY_MATH_OPS(X) TARN_UNARY_ACTIVATION_OPS(X)

#define TARN_BINARY_ARITHMETIC_OPS(X)                                              \
  X(Add, "add") X(Sub, "sub") X(Mul, "mul") X(Div, "div") X(FloorDiv, "floor_div") \
  X(TruncDiv, "trunc_div") X(Remainder, "remainder") X(Fmod, "fmod") X(Pow, "pow") \
  X(Maximum, "maximum") X(Minimum, "minimum") X(Atan2, "atan2")

#define TARN_BINARY_LOGIC_OPS(X)                                                       \
  X(Eq, "eq") X(Ne, "ne") X(Lt, "lt") X(Le, "le") X(Gt, "gt") X(Ge, "ge")              \
  X(LogicalAnd, "logical_and") X(LogicalOr, "logical_or") X(LogicalXor, "logical_xor") \
  X(BitwiseAnd, "bitwise_and") X(BitwiseOr, "bitwise_or") X(BitwiseXor, "bitwise_xor") \
  X(LeftShift, "left_shift") X(RightShift, "right_shift")

#define TARN_BINARY_OPS(X) \
  TARN_BINARY_ARITHMETIC_OPS(X) TARN_BINARY_LOGIC_OPS(X)

#define TARN_TERNARY_OPS(X)                                                              \
  X(Addcmul, "addcmul") X(Addcdiv, "addcdiv") X(Lerp, "lerp") X(AddScaled, "add_scaled") \
  X(LerpScalar, "lerp_scalar")
// clang-format on

#define TARN_ENUMERATOR(Name, name) k##Name,
enum class UnaryOp : uint8_t { TARN_UNARY_OPS(TARN_ENUMERATOR) };
enum class BinaryOp : uint8_t { TARN_BINARY_OPS(TARN_ENUMERATOR) };
enum class TernaryOp : uint8_t { TARN_TERNARY_OPS(TARN_ENUMERATOR) };
#undef TARN_ENUMERATOR

#define TARN_COUNT(Name, name) +1
inline constexpr int kNumUnaryOps = 0 TARN_UNARY_OPS(TARN_COUNT);
inline constexpr int kNumBinaryOps = 0 TARN_BINARY_OPS(TARN_COUNT);
inline constexpr int kNumTernaryOps = 0 TARN_TERNARY_OPS(TARN_COUNT);
#undef TARN_COUNT

/// An operator's traits, for the layers above the kernels.
struct UnaryInfo {
  const char* name;
  Saves saves;
  Domain domain;
  bool differentiable;
  bool predicate;  ///< writes bool
  bool piecewise;
};
struct BinaryInfo {
  const char* name;
  Domain domain;
  bool predicate;  ///< writes bool
};

#define TARN_INFO(Name, name)          \
  UnaryInfo{name,                      \
            ops::Name::saves,          \
            ops::Name::domain,         \
            ops::Name::differentiable, \
            ops::Name::predicate,      \
            ops::Name::piecewise},
inline constexpr UnaryInfo kUnaryInfo[] = {TARN_UNARY_OPS(TARN_INFO)};
#undef TARN_INFO
#define TARN_INFO(Name, name) BinaryInfo{name, ops::Name::domain, ops::Name::predicate},
inline constexpr BinaryInfo kBinaryInfo[] = {TARN_BINARY_OPS(TARN_INFO)};
#undef TARN_INFO

constexpr const UnaryInfo& unary_info(UnaryOp op) {
  return kUnaryInfo[static_cast<int>(op)];
}
constexpr const BinaryInfo& binary_info(BinaryOp op) {
  return kBinaryInfo[static_cast<int>(op)];
}

constexpr BinaryInfo ternary_info(TernaryOp op) {
  switch (op) {
#define TARN_CASE(Name, name) \
  case TernaryOp::k##Name:    \
    return {name, ops::Name::domain, false};
    TARN_TERNARY_OPS(TARN_CASE)
#undef TARN_CASE
  }
  __builtin_unreachable();
}

/// The slope dy/dx (N = 1) and its first and second derivative (N = 2, 3) with respect to what
/// Op::saves names: the input x, or the output y (whose own dependence on x is the business of the
/// node that made y, so the chain rule is complete). Orders 2 and 3 evaluate the slope's formula on
/// dual numbers, or ask Op where it has formulas of its own (high_order): at a pole dual numbers
/// meet 0 * inf.
template <class Op, int N, class T>
TARN_HD T derivative(T saved, const Scalars& s) {
  static_assert(N >= 1 && N <= 3);
  using D1 = math::Dual<T>;
  using D2 = math::Dual<D1>;
  if constexpr (N == 1) {
    return Op::grad(saved, s);
  } else if constexpr (Op::saves == Saves::kNone) {
    return T(0.0);
  } else if constexpr (requires { Op::template high_order<N>(saved, s); }) {
    return Op::template high_order<N>(saved, s);
  } else if constexpr (N == 2) {
    return Op::grad(D1(saved, T(1.0)), s).d;
  } else {
    return Op::grad(D2(D1(saved, T(1.0)), D1(T(1.0), T(0.0))), s).d.d;
  }
}

/// grad * derivative<Op, N>(saved): one step of backpropagation through Op.
template <class Op, int N, class T>
TARN_HD T backward(T grad, T saved, const Scalars& s) {
  const T slope = derivative<Op, N>(saved, s);
  const T product = grad * slope;
  if constexpr (Op::piecewise) {
    return slope == T(0.0) ? T(0.0) : product;
  } else {
    return product;
  }
}

}  // namespace tarn
