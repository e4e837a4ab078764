// functions_shape.h - views, copies and casts, recorded.
//
// Views share storage with their input: writing to one is seen in the other. The same operations
// exist as members of Tensor; core/views.h says what each accepts.
#pragma once

#include <span>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

Tensor view(const Tensor& x, const Shape& sizes);
Tensor reshape(const Tensor& x, const Shape& sizes);
Tensor flatten(const Tensor& x, int64_t start = 0, int64_t end = -1);
Tensor transpose(const Tensor& x, int64_t a, int64_t b);
Tensor t(const Tensor& x);
Tensor permute(const Tensor& x, const Shape& dims);
Tensor unsqueeze(const Tensor& x, int64_t dim);
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, int64_t dim);
Tensor expand(const Tensor& x, const Shape& sizes);
Tensor broadcast_to(const Tensor& x, const Shape& sizes);
Tensor select(const Tensor& x, int64_t dim, int64_t index);
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step = 1);
Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length);
Tensor diagonal(const Tensor& x, int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1);

/// x itself if it has the layout, else a copy.
Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::kContiguous);
Tensor clone(const Tensor& x);
/// x itself if nothing changes. The gradient is cast (or moved) back.
Tensor to(const Tensor& x, DType dtype);
Tensor to(const Tensor& x, Device device);

/// to = from in place, recorded: the gradient of `to`'s old value is 0, that of `from` flows.
void copy_(const Tensor& to, const Tensor& from);

}  // namespace tarn
