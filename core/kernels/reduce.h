// reduce.h - slots for reductions, scans and selections along dimensions.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

enum class ReduceOp : uint8_t {
  kSum,
  kMean,
  kProd,
  kMax,
  kMin,
  kAny,
  kAll,
  kNorm0,
  kNorm1,
  kNorm2,
  kNormInf,
  kNormNegInf,
  kNormP,
  kSumSquares
};

struct ReduceKernels {
  /// out = op over the dimensions in which out has size 1 and x has not (out has x's rank, any
  /// strides in x; out dense). Sums accumulate in f32 for halves (f64 allowed), pairwise or
  /// blocked, in an order that does not depend on the thread count. Max and min propagate NaN. x
  /// over nothing: the identity (mean: NaN). out's dtype: x's, except any/all (bool), integer sums
  /// (i64), and as given (f32 for halves). p: for kNormP.
  void (*reduce)(ReduceOp op, const Tensor& x, double p, const Tensor& out,
                 Stream stream) = nullptr;
  /// Variance and mean over the same rule, of any floating dtype, x's or not; `correction` as in
  /// PyTorch (1: unbiased). Either output may be undefined. Welford or two-pass; never E[x^2] -
  /// E[x]^2.
  void (*var_mean)(const Tensor& x, double correction, const Tensor& var, const Tensor& mean,
                   Stream stream) = nullptr;
  /// Index (i64) of the first maximum (or minimum) along dim, NaN first. x row-major dense; index
  /// and values (may be undefined) dense, of x's sizes with size 1 in dim.
  void (*arg_reduce)(bool largest, const Tensor& x, int64_t dim, const Tensor& values,
                     const Tensor& index, Stream stream) = nullptr;
  /// Inclusive running sum (or product) along dim; x and out row-major dense. out: x's dtype,
  /// i64 for integers and bool.
  void (*cumulative)(bool product, const Tensor& x, int64_t dim, const Tensor& out,
                     Stream stream) = nullptr;
  /// The k first elements along dim in sorted order (stable; NaN counts as the largest), and their
  /// indices (i64). k = size: a sort. All row-major dense.
  void (*topk)(const Tensor& x, int64_t k, int64_t dim, bool largest, const Tensor& values,
               const Tensor& index, Stream stream) = nullptr;
};

}  // namespace tarn
