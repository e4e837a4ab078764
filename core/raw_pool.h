// raw_pool.h - tarn::raw: two-dimensional pooling, unrecorded.
#pragma once

#include <utility>

#include "tarn/core/kernels/pool.h"
#include "tarn/core/tensor.h"

namespace tarn {

/// A height and a width: Size2(3) is 3 by 3, Size2(3, 5) or {3, 5} is 3 high and 5 wide.
struct Size2 {
  int64_t h, w;
  constexpr Size2(int64_t both) : h(both), w(both) {}
  constexpr Size2(int64_t height, int64_t width) : h(height), w(width) {}
  constexpr bool operator==(const Size2& o) const { return h == o.h && w == o.w; }
};

namespace raw {

/// Sizes of the result of pooling x [N, C, H, W]; throws in the words of `op`.
/// OH = floor((H + 2 pad - dilation (kernel - 1) - 1) / stride) + 1, or ceil with ceil_mode, then
/// without a window that would start in the right padding.
Shape pool2d_sizes(const char* op, const Tensor& x, const Pool2dOptions& options, bool ceil_mode);
/// [N, C, OH, OW] for adaptive pooling.
Shape adaptive_sizes(const char* op, const Tensor& x, Size2 output);

/// Maxima and their positions h * W + w, in index_dtype (i32 or i64). Keeps x's layout.
std::pair<Tensor, Tensor> max_pool2d(const Tensor& x, const Pool2dOptions& options,
                                     const Shape& sizes, DType index_dtype);
Tensor max_pool2d_backward(const Tensor& gy, const Tensor& index, const Pool2dOptions& options,
                           const Shape& x_sizes, MemoryFormat format);
/// The layout a pooling of x works in, and its gradient.
MemoryFormat pool_format(const Tensor& x);
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options, const Shape& sizes);
Tensor avg_pool2d_backward(const Tensor& gy, const Pool2dOptions& options, const Shape& x_sizes,
                           MemoryFormat format);

}  // namespace raw
}  // namespace tarn
