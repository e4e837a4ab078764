// index.h - slots for gathering and scattering by index tensors.
//
// Index tensors are i64 and were checked against their range (check_range), negative ones already
// wrapped where the operation allows them.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

enum class ScatterOp : uint8_t { kWrite, kAdd };

struct IndexKernels {
  /// Position of the first value of index outside [low, high), or -1. index dense.
  int64_t (*find_out_of_range)(const Tensor& index, int64_t low, int64_t high,
                               Stream stream) = nullptr;
  /// out [.., n, ..] = x [.., index[n], ..] along dim; index 1-d. out dense.
  void (*index_select)(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& out,
                       Stream stream) = nullptr;
  /// out [.., index[n], ..] op= src [.., n, ..]. Duplicates add in the order of n: deterministic.
  void (*index_add)(ScatterOp op, const Tensor& out, int64_t dim, const Tensor& index,
                    const Tensor& src, double alpha, Stream stream) = nullptr;
  /// out[i][j] = x[index[i][j]][j] (dim 0; likewise others), out has index's sizes.
  void (*gather)(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& out,
                 Stream stream) = nullptr;
  /// out[index[i][j]][j] op= src[i][j] in row-major order of index.
  void (*scatter)(ScatterOp op, const Tensor& out, int64_t dim, const Tensor& index,
                  const Tensor& src, Stream stream) = nullptr;
  /// Row-major positions (i64, [count, ndim]) of the non-zero elements of x; count comes first.
  int64_t (*count_nonzero)(const Tensor& x, Stream stream) = nullptr;
  void (*nonzero)(const Tensor& x, const Tensor& out, Stream stream) = nullptr;
  /// Copies the upper (or lower) triangle of the last two dims relative to `diagonal`; zero
  /// elsewhere.
  void (*triangle)(bool upper, const Tensor& x, int64_t diagonal, const Tensor& out,
                   Stream stream) = nullptr;
};

}  // namespace tarn
