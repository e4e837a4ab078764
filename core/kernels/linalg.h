// linalg.h - slots for dense linear algebra. Of the CPU's table: no other device has these.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

/// All tensors are on the CPU, dense and row-major, f32 or f64 alike; B >= 1 and no size is 0.
/// info [B] (i64) is 0 for a matrix that could be computed, 1 for one that could not, whose results
/// are then of no meaning. NaN among the inputs is no failure: it gives NaN.
struct LinalgKernels {
  /// a [B, N, N] -> lower [B, N, N]: a = lower lower^T; reads the lower triangle. info: a is not
  /// positive definite.
  void (*cholesky)(const Tensor& a, const Tensor& lower, const Tensor& info,
                   Stream stream) = nullptr;
  /// a [B, N, N] -> out [B, N, N]. info: a is singular, its elimination met a pivot of exactly 0.
  void (*inv)(const Tensor& a, const Tensor& out, const Tensor& info, Stream stream) = nullptr;
  /// a [B, N, N] -> out [B].
  void (*det)(const Tensor& a, const Tensor& out, Stream stream) = nullptr;
  /// a [B, N, N] -> sign [B] (-1, 0 or 1) and log |det| [B] (-infinity for 0).
  void (*slogdet)(const Tensor& a, const Tensor& sign, const Tensor& logabs,
                  Stream stream) = nullptr;
  /// a [B, N, N], b [B, N, K] -> x [B, N, K]: a x = b. info as for inv.
  void (*solve)(const Tensor& a, const Tensor& b, const Tensor& x, const Tensor& info,
                Stream stream) = nullptr;
  /// a [B, M, N] -> q [B, M, K], r [B, K, N] with K = min(M, N).
  void (*qr)(const Tensor& a, const Tensor& q, const Tensor& r, Stream stream) = nullptr;
  /// a [B, N, N], of which it reads the lower triangle -> values [B, N] ascending and vectors
  /// [B, N, N] in columns. info: the iteration did not converge.
  void (*eigh)(const Tensor& a, const Tensor& values, const Tensor& vectors, const Tensor& info,
               Stream stream) = nullptr;
  /// a [B, M, N] -> u [B, M, K], s [B, K] descending, vh [B, K, N]. info as for eigh.
  void (*svd)(const Tensor& a, const Tensor& u, const Tensor& s, const Tensor& vh,
              const Tensor& info, Stream stream) = nullptr;
};

}  // namespace tarn
