// raw_index.h - tarn::raw: gathering, scattering, joining and padding, unrecorded.
//
// Indices are i64 or i32 and may not be negative, except in `index` and `index_put`, where -1 is
// the last. An index outside its range throws IndexError that names it, its position and the range;
// on a GPU whoever next waits for the device gets the error (index_check.h).
// Where a place is written twice, the later in row-major order wins; sums are made in that order,
// on a GPU in parts of it where a place gets more than some hundreds (segment_sums.cuh). Halves are
// summed in f32 and rounded once.
#pragma once

#include <span>

#include "tarn/core/tensor.h"

namespace tarn::raw {

/// A dense i64 copy of index (itself where it is that already), checked to lie in [0, size), or in
/// [-size, size) and wrapped if `wrap`. dim is for the message.
Tensor checked_index(const char* op, const Tensor& index, int64_t dim, int64_t size,
                     bool wrap = false);

/// x[.., index[n], ..]: index 1-d (or one element), along dim.
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);
/// x[.., index[n], ..] += alpha * src[.., n, ..] in place. src: x's dtype, x's sizes with n at dim.
void index_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src,
                double alpha = 1);
/// x[.., index[n], ..] = src[.., n, ..] in place.
void index_copy_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// out[i][j] = x[index[i][j]][j] for dim 0, likewise for others; out has index's sizes.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// x[index[i][j]][j] = src[i][j] in place (dim 0), for all i, j of index; src at least as large.
void scatter_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
void scatter_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// Positions [count, ndim] (i64) of the non-zero elements, row-major.
Tensor nonzero(const Tensor& x);
/// The triangle on and above (below) the given diagonal of the last two dimensions; 0 elsewhere.
Tensor triu(const Tensor& x, int64_t diagonal = 0);
Tensor tril(const Tensor& x, int64_t diagonal = 0);
/// The order of dim reversed in each of dims.
Tensor flip(const Tensor& x, const Shape& dims);
/// 1 at index, 0 elsewhere: [.., classes] (i64). classes -1: largest index + 1.
Tensor one_hot(const Tensor& index, int64_t classes = -1);

/// Joined along dim, which alone may differ; dtypes are promoted. A tensor of sizes [0] is skipped.
Tensor cat(std::span<const Tensor> tensors, int64_t dim);
/// Grown (or cut, where negative) by pads = {before, after of the last dim, of the one before, ..}.
Tensor constant_pad(const Tensor& x, const Shape& pads, const Scalar& value);

}  // namespace tarn::raw
