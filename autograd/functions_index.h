// functions_index.h - picking and writing by index, joining, padding and repeating; recorded.
//
// Indices are i64 or i32 tensors and may not be negative, except in `index` and `index_put`, where
// -1 is the last. An index outside its range throws IndexError that names it, its position and the
// range. Where one place is written twice the later value in row-major order wins, and where sums
// meet they are made in that order: results are the same in every run and at any thread count.
// Each operation is differentiable, twice as well, in everything but the indices. (A value that was
// overwritten by a later one still gets the gradient of the place, as in PyTorch: for exact
// gradients write each place once.)
#pragma once

#include <span>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

// ---- picking
/// x[.., index[n], ..] along dim; index [n].
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index);
/// out[i][j] = x[index[i][j]][j] for dim 0, likewise for others; out has index's sizes.
Tensor gather(const Tensor& x, int64_t dim, const Tensor& index);
/// gather after broadcasting x and index against each other outside dim.
Tensor take_along_dim(const Tensor& x, const Tensor& index, int64_t dim);
/// x[indices...] as NumPy does: each entry picks along one dimension (bool: along as many as the
/// mask has), an undefined entry keeps its dimension whole. The broadcast sizes of the entries
/// stand where the first indexed dimension was if the indexed ones are neighbours, else in front.
Tensor index(const Tensor& x, const std::vector<Tensor>& indices);
/// The elements where mask (bool, broadcast against x) holds, row-major: [count].
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// Positions [count, ndim] (i64) of the non-zero elements. Not differentiable.
Tensor nonzero(const Tensor& x);
/// Rows of weight [V, D]: [.., D] for index [..]. Row padding_idx (-1: none) gets no gradient.
Tensor embedding(const Tensor& weight, const Tensor& index, int64_t padding_idx = -1);

// ---- writing; the forms ending in _ change x
/// x[.., index[n], ..] + alpha * src[.., n, ..].
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src,
                 double alpha = 1);
const Tensor& index_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src,
                         double alpha = 1);
/// x[.., index[n], ..] := src[.., n, ..].
Tensor index_copy(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
const Tensor& index_copy_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// x[.., index[n], ..] := value.
Tensor index_fill(const Tensor& x, int64_t dim, const Tensor& index, const Scalar& value);
/// x[index[i][j]][j] := src[i][j] for dim 0, for all i, j of index; src at least as large.
Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index, const Scalar& value);
const Tensor& scatter_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
const Tensor& scatter_(const Tensor& x, int64_t dim, const Tensor& index, const Scalar& value);
/// x[index[i][j]][j] += src[i][j].
Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
const Tensor& scatter_add_(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src);
/// x[indices...] := values, or += with accumulate; values broadcast to the sizes of index(x,
/// indices).
Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values,
                 bool accumulate = false);
const Tensor& index_put_(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values,
                         bool accumulate = false);

// ---- parts of matrices, order
/// The triangle on and above (below) the given diagonal of the last two dimensions; 0 elsewhere.
Tensor triu(const Tensor& x, int64_t diagonal = 0);
Tensor tril(const Tensor& x, int64_t diagonal = 0);
/// The order reversed in each of dims.
Tensor flip(const Tensor& x, const Shape& dims);
/// Moved on by shifts[i] places along dims[i]; what leaves at the end enters at the beginning.
Tensor roll(const Tensor& x, const Shape& shifts, const Shape& dims);
/// 1 at index, 0 elsewhere: [.., classes] (i64). classes -1: largest index + 1.
Tensor one_hot(const Tensor& index, int64_t classes = -1);

// ---- joining and taking apart
/// Joined along dim, the only one that may differ. Dtypes are promoted.
Tensor cat(std::span<const Tensor> tensors, int64_t dim = 0);
inline Tensor cat(const std::vector<Tensor>& tensors, int64_t dim = 0) {
  return cat(std::span<const Tensor>(tensors), dim);
}
/// Joined along a new dimension; all of one shape.
Tensor stack(const std::vector<Tensor>& tensors, int64_t dim = 0);
/// Views of `size` each along dim, the last one smaller if need be; or of the given sizes.
std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim = 0);
/// At most `chunks` views of equal size (ceil(size / chunks)), the last one smaller if need be.
std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int64_t dim = 0);
/// A view for each index of dim, without that dimension.
std::vector<Tensor> unbind(const Tensor& x, int64_t dim = 0);

// ---- padding and repeating
enum class PadMode : uint8_t { kConstant, kReflect, kReplicate, kCircular };
/// Padded by pads = {before, after of the last dim, before, after of the one before it, ...}.
/// Negative pads cut. kReflect does not repeat the border and needs pads below the size; kCircular
/// needs pads up to the size.
Tensor pad(const Tensor& x, const Shape& pads, PadMode mode = PadMode::kConstant,
           const Scalar& value = 0);
/// The whole repeated repeats[d] times along each dimension; repeats may have more entries than x
/// has dimensions.
Tensor repeat(const Tensor& x, const Shape& repeats);
/// Each element repeated `repeats` times along dim.
Tensor repeat_interleave(const Tensor& x, int64_t repeats, int64_t dim);

}  // namespace tarn
