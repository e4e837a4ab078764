// ops_pool.cpp - pooling and its gradients.
//
// Both gradients are linear in gy, so they are recorded as operations of their own: that of average
// pooling has average pooling as its gradient, that of max pooling picks where the maxima were.
#include <limits>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {
namespace {

// Calls f with an image batch; a single image is one for the time being.
template <class F>
Tensor batched(const char* op, const Tensor& x, int image_dims, F&& f) {
  raw::check_defined(op, "x", x);
  if (x.dim() != image_dims - 1) return f(x);
  return squeeze(f(unsqueeze(x, 0)), 0);
}

Pool2dOptions pool_options(Size2 kernel, Size2 stride, Size2 padding, Size2 dilation) {
  if (stride == Size2(0)) stride = kernel;
  Pool2dOptions o;
  o.kernel_h = kernel.h, o.kernel_w = kernel.w;
  o.stride_h = stride.h, o.stride_w = stride.w;
  o.pad_h = padding.h, o.pad_w = padding.w;
  o.dilation_h = dilation.h, o.dilation_w = dilation.w;
  return o;
}

Tensor max_backward(const Tensor& gy, const Tensor& index, const Pool2dOptions& options,
                    const Shape& x_sizes, MemoryFormat format) {
  return record("max_pool2d_backward",
                raw::max_pool2d_backward(gy, index, options, x_sizes, format), {gy}, save(index),
                [](const Saved& s, const Tensor& g, Wants) {
                  const Tensor index = s[0];
                  const Shape flat{g.size(0), g.size(1), g.size(2) * g.size(3)};
                  const Shape picks{g.size(0), g.size(1), index.size(2) * index.size(3)};
                  const Tensor at = raw::to(reshape(index, picks), DType::kI64);
                  return Grads(reshape(gather(reshape(g, flat), 2, at), index.sizes()));
                });
}

// The index is i32 where it is not asked for: half the traffic.
std::pair<Tensor, Tensor> max_pool(const char* op, const Tensor& x, const Pool2dOptions& options,
                                   const Shape& sizes, bool want_index) {
  const bool small = x.size(2) * x.size(3) <= std::numeric_limits<int32_t>::max();
  const DType index_dtype = want_index || !small ? DType::kI64 : DType::kI32;
  auto [y, index] = raw::max_pool2d(x, options, sizes, index_dtype);
  y = record(op, y, {x}, save(index),
             [options, x_sizes = x.sizes(), format = raw::pool_format(x)](const Saved& s,
                                                                          const Tensor& g, Wants) {
               return Grads(max_backward(g, s[0], options, x_sizes, format));
             });
  return {y, index};
}

Tensor avg_pool(const char* op, const Tensor& x, const Pool2dOptions& options, const Shape& sizes);

Tensor avg_backward(const Tensor& gy, const Pool2dOptions& options, const Shape& x_sizes,
                    MemoryFormat format) {
  return record("avg_pool2d_backward", raw::avg_pool2d_backward(gy, options, x_sizes, format), {gy},
                save(), [options, sizes = gy.sizes()](const Saved&, const Tensor& g, Wants) {
                  return Grads(avg_pool("avg_pool2d", g, options, sizes));
                });
}

Tensor avg_pool(const char* op, const Tensor& x, const Pool2dOptions& options, const Shape& sizes) {
  return record(op, raw::avg_pool2d(x, options, sizes), {x}, save(),
                [options, x_sizes = x.sizes(), format = raw::pool_format(x)](
                    const Saved&, const Tensor& g, Wants) {
                  return Grads(avg_backward(g, options, x_sizes, format));
                });
}

Pool2dOptions adaptive_options() {
  Pool2dOptions o;
  o.adaptive = true;
  return o;
}

// A pooling with indices of a single image or a batch.
template <class F>
std::pair<Tensor, Tensor> with_indices(const char* op, const Tensor& x, F&& f) {
  Tensor index;
  const Tensor y = batched(op, x, 4, [&](const Tensor& images) {
    std::pair<Tensor, Tensor> r = f(images);
    index = r.second;
    return r.first;
  });
  return {y, y.dim() == index.dim() ? index : squeeze(index, 0)};
}

}  // namespace

Tensor max_pool2d(const Tensor& x, Size2 kernel, Size2 stride, Size2 padding, Size2 dilation,
                  bool ceil_mode) {
  return batched("max_pool2d", x, 4, [&](const Tensor& images) {
    const Pool2dOptions o = pool_options(kernel, stride, padding, dilation);
    const Shape sizes = raw::pool2d_sizes("max_pool2d", images, o, ceil_mode);
    return max_pool("max_pool2d", images, o, sizes, false).first;
  });
}

std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, Size2 kernel, Size2 stride,
                                                  Size2 padding, Size2 dilation, bool ceil_mode) {
  return with_indices("max_pool2d", x, [&](const Tensor& images) {
    const Pool2dOptions o = pool_options(kernel, stride, padding, dilation);
    const Shape sizes = raw::pool2d_sizes("max_pool2d", images, o, ceil_mode);
    return max_pool("max_pool2d", images, o, sizes, true);
  });
}

Tensor avg_pool2d(const Tensor& x, Size2 kernel, Size2 stride, Size2 padding, bool ceil_mode,
                  bool count_include_pad, int64_t divisor_override) {
  TARN_CHECK_AS(ValueError, divisor_override >= 0,
                "avg_pool2d: divisor_override must be positive, or 0 for none; got ",
                divisor_override);
  return batched("avg_pool2d", x, 4, [&](const Tensor& images) {
    Pool2dOptions o = pool_options(kernel, stride, padding, 1);
    o.count_include_pad = count_include_pad;
    o.divisor_override = divisor_override;
    return avg_pool("avg_pool2d", images, o, raw::pool2d_sizes("avg_pool2d", images, o, ceil_mode));
  });
}

Tensor adaptive_avg_pool2d(const Tensor& x, Size2 output) {
  return batched("adaptive_avg_pool2d", x, 4, [&](const Tensor& images) {
    return avg_pool("adaptive_avg_pool2d", images, adaptive_options(),
                    raw::adaptive_sizes("adaptive_avg_pool2d", images, output));
  });
}

Tensor adaptive_max_pool2d(const Tensor& x, Size2 output) {
  return batched("adaptive_max_pool2d", x, 4, [&](const Tensor& images) {
    const Shape sizes = raw::adaptive_sizes("adaptive_max_pool2d", images, output);
    return max_pool("adaptive_max_pool2d", images, adaptive_options(), sizes, false).first;
  });
}

std::pair<Tensor, Tensor> adaptive_max_pool2d_with_indices(const Tensor& x, Size2 output) {
  return with_indices("adaptive_max_pool2d", x, [&](const Tensor& images) {
    const Shape sizes = raw::adaptive_sizes("adaptive_max_pool2d", images, output);
    return max_pool("adaptive_max_pool2d", images, adaptive_options(), sizes, true);
  });
}

namespace {

// A line is an image one row high.
template <class F>
Tensor over_lines(const char* op, const Tensor& x, F&& f) {
  raw::check_defined(op, "x", x);
  TARN_CHECK_AS(ShapeError, x.dim() == 2 || x.dim() == 3, op,
                ": x must be [N, C, L] or [C, L]; got x=", x.describe());
  return squeeze(f(unsqueeze(x, -2)), -2);
}

}  // namespace

Tensor max_pool1d(const Tensor& x, int64_t kernel, int64_t stride, int64_t padding,
                  int64_t dilation, bool ceil_mode) {
  return over_lines("max_pool1d", x, [&](const Tensor& rows) {
    return max_pool2d(rows, {1, kernel}, {1, stride == 0 ? kernel : stride}, {0, padding},
                      {1, dilation}, ceil_mode);
  });
}

Tensor avg_pool1d(const Tensor& x, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode,
                  bool count_include_pad) {
  return over_lines("avg_pool1d", x, [&](const Tensor& rows) {
    return avg_pool2d(rows, {1, kernel}, {1, stride == 0 ? kernel : stride}, {0, padding},
                      ceil_mode, count_include_pad);
  });
}

Tensor adaptive_avg_pool1d(const Tensor& x, int64_t output) {
  return over_lines("adaptive_avg_pool1d", x, [&](const Tensor& rows) {
    return adaptive_avg_pool2d(rows, {1, output});
  });
}

Tensor adaptive_max_pool1d(const Tensor& x, int64_t output) {
  return over_lines("adaptive_max_pool1d", x, [&](const Tensor& rows) {
    return adaptive_max_pool2d(rows, {1, output});
  });
}

}  // namespace tarn
