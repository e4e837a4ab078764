// index.h - slots for gathering and scattering by index tensors.
//
// Index tensors are dense i64, were checked against their range, and hold no negative values. On a
// device that goes on while its checks are queued (kCheckQueued) a value may still be out of range:
// kernels read nothing there (0 instead) and write nothing.
// [O, S, I] means: dense, with dim as the middle of three dimensions (sizes before and after it
// multiplied out).
#pragma once

#include "tarn/core/index_check.h"
#include "tarn/core/tensor.h"

namespace tarn {

enum class ScatterOp : uint8_t { kWrite, kAdd };

/// The position of find_out_of_range where nobody knows yet: the device checks in stream order, and
/// who next waits for the device gets the IndexError.
inline constexpr int64_t kCheckQueued = -2;

struct IndexKernels {
  /// position = that of the first value of index that the check does not allow, in row-major order;
  /// -1 if there is none; or kCheckQueued.
  void (*find_out_of_range)(const Tensor& index, const IndexCheck& check, int64_t* position,
                            Stream stream) = nullptr;
  /// out = index, plus size where it is negative. Any index, out dense and of its sizes.
  void (*wrap_negative)(const Tensor& index, int64_t size, const Tensor& out,
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
  /// dense [B, M, N], -M <= diagonal <= N.
  void (*triangle)(bool upper, const Tensor& x, int64_t diagonal, const Tensor& out,
                   Stream stream) = nullptr;
};

}  // namespace tarn
