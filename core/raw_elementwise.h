// raw_elementwise.h - tarn::raw: elementwise operations, copies and casts, unrecorded.
//
// One checked entry per kernel slot; the operations by name (raw::exp, raw::add, ...) are generated
// from the lists in core/elementwise.h.
#pragma once

#include "tarn/core/elementwise.h"
#include "tarn/core/tensor.h"

namespace tarn::raw {

/// op(x). Integers are promoted to f32 where the operation leaves the integers (exp, sqrt, ...).
/// Errors speak of `name`, what the caller called, or else of the operator.
Tensor unary(UnaryOp op, const Tensor& x, const Scalars& s = {}, const char* name = nullptr);
/// x = op(x), in x's dtype. Throws DTypeError if that cannot hold the result.
void unary_(UnaryOp op, const Tensor& x, const Scalars& s = {}, const char* name = nullptr);
/// grad * the derivative of this order with respect to what the functor saves (its input or its
/// output; undefined where it saves nothing).
Tensor unary_backward(UnaryOp op, int order, const Tensor& grad, const Tensor& saved,
                      const Scalars& s);
/// op(a, b), broadcast and promoted as in PyTorch. Comparisons and logic give bool.
Tensor binary(BinaryOp op, const Tensor& a, const Tensor& b);
Tensor binary(BinaryOp op, const Tensor& a, const Scalar& b);
Tensor binary(BinaryOp op, const Scalar& a, const Tensor& b);
/// a = op(a, b): b must broadcast to a's sizes and its dtype must not outrank a's kind.
void binary_(BinaryOp op, const Tensor& a, const Tensor& b);
void binary_(BinaryOp op, const Tensor& a, const Scalar& b);
/// cond ? a : b; cond is bool.
Tensor where(const Tensor& cond, const Tensor& a, const Tensor& b);
Tensor ternary(TernaryOp op, const Tensor& a, const Tensor& b, const Tensor& c, const Scalars& s);
void ternary_(TernaryOp op, const Tensor& a, const Tensor& b, const Tensor& c, const Scalars& s);

// The binary operations by name.
// clang-format off
#define TARN_RAW_BINARY(X)                                                                     \
  X(Add, add) X(Sub, sub) X(Mul, mul) X(Div, div) X(FloorDiv, floor_div)                       \
  X(TruncDiv, trunc_div) X(Remainder, remainder) X(Fmod, fmod) X(Pow, pow) X(Maximum, maximum) \
  X(Minimum, minimum) X(Atan2, atan2) X(Eq, eq) X(Ne, ne) X(Lt, lt) X(Le, le) X(Gt, gt)        \
  X(Ge, ge) X(LogicalAnd, logical_and) X(LogicalOr, logical_or) X(LogicalXor, logical_xor)     \
  X(BitwiseAnd, bitwise_and) X(BitwiseOr, bitwise_or) X(BitwiseXor, bitwise_xor)
// clang-format on
#define TARN_X(Name, name)                               \
  inline Tensor name(const Tensor& a, const Tensor& b) { \
    return binary(BinaryOp::k##Name, a, b);              \
  }                                                      \
  inline Tensor name(const Tensor& a, const Scalar& b) { \
    return binary(BinaryOp::k##Name, a, b);              \
  }
TARN_RAW_BINARY(TARN_X)
#undef TARN_X
#undef TARN_RAW_BINARY

inline void add_(const Tensor& a, const Tensor& b) {
  binary_(BinaryOp::kAdd, a, b);
}
inline void sub_(const Tensor& a, const Tensor& b) {
  binary_(BinaryOp::kSub, a, b);
}
inline void mul_(const Tensor& a, const Tensor& b) {
  binary_(BinaryOp::kMul, a, b);
}
inline void mul_(const Tensor& a, const Scalar& b) {
  binary_(BinaryOp::kMul, a, b);
}
inline void div_(const Tensor& a, const Tensor& b) {
  binary_(BinaryOp::kDiv, a, b);
}
inline Tensor logical_not(const Tensor& x) {
  return unary(UnaryOp::kLogicalNot, x);
}

/// The dtype of op(a, b): 0-d tensors and scalars promote only across kinds, as in PyTorch.
DType result_dtype(const Tensor& a, const Tensor& b);

/// x itself if it already has the layout, else a dense copy.
Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::kContiguous);
/// A dense copy that keeps the order of dimensions.
Tensor clone(const Tensor& x);
/// x itself if nothing changes, else a copy.
Tensor to(const Tensor& x, DType dtype);
Tensor to(const Tensor& x, Device device);
/// to = from, broadcast, cast, and moved between devices. Sizes of `from` must broadcast to `to`'s.
void copy_(const Tensor& to, const Tensor& from);
/// Errors speak of `op`.
void fill_(const Tensor& x, const Scalar& value, const char* op = "fill_");
/// A number as the operand beside x: 0-d, of the dtype the two give. Integers that do not fit wrap,
/// as in PyTorch, where scalar_tensor throws.
Tensor scalar_beside(const Scalar& value, const Tensor& x);
/// Sums x over the dimensions along which `sizes` would be broadcast to it: the gradient of expand.
Tensor sum_to_size(const Tensor& x, const Shape& sizes);

/// Throws DeviceError that names both devices unless a and b share one.
void check_same_device(const char* op, const Tensor& a, const Tensor& b);
/// Throws ValueError if x is undefined.
inline void check_defined(const char* op, const char* name, const Tensor& x) {
  TARN_CHECK_AS(ValueError, x.defined(), op, ": ", name, " must be a tensor; got an undefined one");
}

}  // namespace tarn::raw
