// views.h - tarn::raw: new sizes and strides over the same storage. Nothing here copies.
#pragma once

#include <vector>

#include "tarn/core/tensor.h"

namespace tarn::raw {

/// The same storage with other sizes, strides and offset (elements). Checks that it stays inside.
Tensor as_strided(const Tensor& x, const Shape& sizes, const Shape& strides, int64_t offset);
/// Throws ShapeError if x's strides do not allow it. One size may be -1.
Tensor view(const Tensor& x, const Shape& sizes);
/// A view where possible, else a contiguous copy.
Tensor reshape(const Tensor& x, const Shape& sizes);
Tensor transpose(const Tensor& x, int64_t a, int64_t b);
/// x.t(): swaps the dimensions of a matrix; 0-d and 1-d come back unchanged.
Tensor t(const Tensor& x);
Tensor permute(const Tensor& x, const Shape& dims);
Tensor unsqueeze(const Tensor& x, int64_t dim);
/// Without the dimensions of size 1.
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, int64_t dim);
/// Stretches dimensions of size 1, or new leading ones, with stride 0. -1 keeps a size.
Tensor expand(const Tensor& x, const Shape& sizes);
Tensor select(const Tensor& x, int64_t dim, int64_t index);
/// start and end may be negative and are clamped, as in Python; step > 0.
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step = 1);
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);
/// [.., dim, ..] -> [.., windows, .., size]: sliding windows as a view.
Tensor unfold(const Tensor& x, int64_t dim, int64_t size, int64_t step);
Tensor diagonal(const Tensor& x, int64_t offset, int64_t dim1, int64_t dim2);
/// A new handle to the same data without autograd state.
/// A result that was just made, and that nobody else holds, under other sizes: it may be changed in
/// place as any result, which a view may not.
Tensor resized_result(const Tensor& made, const Shape& sizes);
Tensor alias(const Tensor& x);
/// PyTorch's x.data = value: x holds what value holds, dtype and layout too, and stays the same
/// tensor to all who have a handle on it. Its version grows. value is of the sizes of x.
void set_data(const Tensor& x, const Tensor& value);

/// Sizes with the one -1 filled in. Throws ShapeError in the words of `op`.
Shape infer_sizes(const char* op, const Shape& sizes, int64_t numel);

}  // namespace tarn::raw
