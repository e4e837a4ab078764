// index.h - slots for gathering and scattering by index tensors.
//
// Index tensors are dense i64, were checked against their range, and hold no negative values.
// [O, S, I] means: dense, with dim as the middle of three dimensions (sizes before and after it
// multiplied out).
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

enum class ScatterOp : uint8_t { kWrite, kAdd };

struct IndexKernels {
  /// position = that of the first value of index outside [low, high), in row-major order; or -1.
  void (*find_out_of_range)(const Tensor& index, int64_t low, int64_t high, int64_t* position,
                            Stream stream) = nullptr;
  /// out [O, n, I]: out[o][k] = x[o][index[k]], x [O, S, I], index [n]. Any dtype.
  void (*index_select)(const Tensor& x, const Tensor& index, const Tensor& out,
                       Stream stream) = nullptr;
  /// out[o][index[k]] op= alpha * src[o][k] in the order of k, so duplicates are deterministic: the
  /// last write wins, sums have one order. out [O, S, I], src [O, n, I]. kAdd: not the halves (the
  /// raw layer adds in f32); bool adds as "or".
  void (*index_add)(ScatterOp op, const Tensor& out, const Tensor& index, const Tensor& src,
                    double alpha, Stream stream) = nullptr;
  /// out[i][j] = x[index[i][j]][j] (dim 0; likewise others). out dense, of index's sizes; x any
  /// strides, at least index's sizes outside dim. Any dtype.
  void (*gather)(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& out,
                 Stream stream) = nullptr;
  /// out[index[i][j]][j] op= src[i][j] in row-major order of index; src dense, of index's sizes;
  /// out any strides. kAdd as in index_add.
  void (*scatter)(ScatterOp op, const Tensor& out, int64_t dim, const Tensor& index,
                  const Tensor& src, Stream stream) = nullptr;
  /// Number of non-zero elements (NaN is not zero) of a dense x.
  void (*count_nonzero)(const Tensor& x, int64_t* count, Stream stream) = nullptr;
  /// out [count, ndim] (i64) = their positions in row-major order.
  void (*nonzero)(const Tensor& x, const Tensor& out, Stream stream) = nullptr;
  /// out = x in the upper (col - row >= diagonal) or lower (<=) triangle, zero elsewhere. x, out
  /// dense [B, M, N].
  void (*triangle)(bool upper, const Tensor& x, int64_t diagonal, const Tensor& out,
                   Stream stream) = nullptr;
};

}  // namespace tarn
