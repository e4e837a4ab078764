// elementwise.h - slots for elementwise kernels: one pass over operands of an ElementwisePlan.
#pragma once

#include "tarn/core/elementwise.h"
#include "tarn/core/plan.h"

namespace tarn {

struct ElementwiseKernels {
  /// out = op(x). Operands {out, x}, one dtype; predicates (isnan, ...) write bool.
  void (*unary)(UnaryOp op, const Scalars& s, const ElementwisePlan& plan, Stream stream) = nullptr;
  /// out = grad * derivative<op, order>(saved), order 1..3 (core/elementwise.h). Operands
  /// {out, grad, x, y}: only the one that unary_info(op).saves names is read (kInput x, kOutput y,
  /// kNone neither); an absent one repeats grad's tensor.
  void (*unary_backward)(UnaryOp op, int order, const Scalars& s, const ElementwisePlan& plan,
                         Stream stream) = nullptr;
  /// out = op(a, b). Operands {out, a, b}; a and b of one dtype; comparisons and logic write bool.
  void (*binary)(BinaryOp op, const ElementwisePlan& plan, Stream stream) = nullptr;
  /// out = cond ? a : b. Operands {out, cond (bool), a, b}.
  void (*where)(const ElementwisePlan& plan, Stream stream) = nullptr;
  /// out = op(a, b, c, value): addcmul, addcdiv, lerp, add_scaled ... Operands {out, a, b, c}.
  void (*ternary)(TernaryOp op, const Scalars& s, const ElementwisePlan& plan,
                  Stream stream) = nullptr;
  /// out = a cast to out's dtype. Operands {out, a}. Any pair of dtypes.
  void (*copy)(const ElementwisePlan& plan, Stream stream) = nullptr;
  /// out = value. Operands {out}.
  void (*fill)(const Scalar& value, const ElementwisePlan& plan, Stream stream) = nullptr;
  /// out[i] = start + i * step over a dense 1-d out of n elements.
  void (*arange)(const Scalar& start, const Scalar& step, const Tensor& out,
                 Stream stream) = nullptr;
};

}  // namespace tarn
