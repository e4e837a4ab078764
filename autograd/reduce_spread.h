// reduce_spread.h - what the gradients of reductions share.
#pragma once

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_reduce.h"

namespace tarn::detail {

/// The way back from a reduction's result to the sizes of its input. Trivially copyable.
struct Spread {
  Shape kept, sizes;
  int64_t count;  ///< elements that make one of the result's

  Spread(const char* op, const Tensor& x, const Shape& dims)
      : kept(raw::reduced_sizes(x.sizes(), raw::reduce_dims(op, dims, x.dim()))),
        sizes(x.sizes()),
        count(1) {
    for (int d = 0; d < sizes.dim(); ++d) count *= kept[d] == sizes[d] ? 1 : sizes[d];
  }
  /// With the reduced dimensions again, of size 1.
  Tensor keep(const Tensor& g) const { return reshape(g, kept); }
  Tensor operator()(const Tensor& g) const { return expand(keep(g), sizes); }
};

/// True at the position that index (kept, i64) names along dim of a tensor of these sizes.
inline Tensor chosen(const Tensor& index, const Shape& sizes, int dim) {
  Shape line = Shape::filled(sizes.dim(), 1);
  line[dim] = sizes[dim];
  const Tensor positions = arange(sizes[dim], {.dtype = DType::kI64, .device = index.device()});
  return eq(view(positions, line), index);
}

/// A number as a 0-d tensor of x's dtype and device, for where().
inline Tensor number_like(const Tensor& x, double value) {
  return scalar_tensor(value, {.dtype = x.dtype(), .device = x.device()});
}

}  // namespace tarn::detail
