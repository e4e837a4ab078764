// raw_pool.cpp - checks, output sizes, layouts and allocation for pooling.
#include "tarn/core/raw_pool.h"

#include <limits>

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::raw {
namespace {

void check_image(const char* op, const Tensor& x) {
  check_defined(op, "x", x);
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()), op,
                ": x must be floating; got x=", x.describe());
  TARN_CHECK_AS(ShapeError, x.dim() == 4, op,
                ": x must be [N, C, H, W] or [C, H, W]; got x=", x.describe());
}

int64_t output_size(const char* op, const Tensor& x, int64_t in, int64_t kernel, int64_t stride,
                    int64_t pad, int64_t dilation, bool ceil_mode) {
  TARN_CHECK_AS(ValueError, kernel > 0 && stride > 0 && dilation > 0, op,
                ": kernel, stride and dilation must be positive; got kernel=", kernel,
                ", stride=", stride, ", dilation=", dilation);
  TARN_CHECK_AS(ValueError, pad >= 0 && pad <= kernel / 2, op,
                ": padding must be between 0 and half the kernel; got padding=", pad,
                ", kernel=", kernel);
  // In 128 bits, where no product of what a caller may pass overflows.
  using Wide = __int128;
  const Wide span =
      in + 2 * Wide{pad} - Wide{dilation} * (kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
  auto out = static_cast<int64_t>(span < 0 ? 0 : span / stride + 1);
  if (ceil_mode && Wide{out - 1} * stride >= Wide{in} + pad) --out;
  TARN_CHECK_AS(ShapeError, out > 0, op,
                ": the window must fit into the padded image; got x=", x.describe(),
                ", kernel=", kernel, ", dilation=", dilation, ", padding=", pad);
  TARN_CHECK_AS(ValueError, kernel <= std::numeric_limits<int32_t>::max(), op,
                ": kernel must be below 2^31; got ", kernel);
  // A dilated window in the left padding may step over a small image.
  for (int64_t o = 0; o < out && o * stride < pad; ++o) {
    const int64_t before = pad - o * stride;
    const int64_t first = (before + dilation - 1) / dilation * dilation - before;
    TARN_CHECK_AS(ShapeError, first < in, op,
                  ": every window must cover an element; got x=", x.describe(), ", kernel=", kernel,
                  ", dilation=", dilation, ", padding=", pad);
  }
  return out;
}

}  // namespace

MemoryFormat pool_format(const Tensor& x) {
  const bool last = !x.is_contiguous() && x.is_contiguous(MemoryFormat::kChannelsLast);
  return last ? MemoryFormat::kChannelsLast : MemoryFormat::kContiguous;
}

Shape pool2d_sizes(const char* op, const Tensor& x, const Pool2dOptions& o, bool ceil_mode) {
  check_image(op, x);
  return {x.size(0), x.size(1),
          output_size(op, x, x.size(2), o.kernel_h, o.stride_h, o.pad_h, o.dilation_h, ceil_mode),
          output_size(op, x, x.size(3), o.kernel_w, o.stride_w, o.pad_w, o.dilation_w, ceil_mode)};
}

Shape adaptive_sizes(const char* op, const Tensor& x, Size2 output) {
  check_image(op, x);
  TARN_CHECK_AS(ValueError, output.h >= 0 && output.w >= 0, op,
                ": the output size must not be negative; got ", output.h, " by ", output.w);
  TARN_CHECK_AS(ShapeError, x.size(2) > 0 && x.size(3) > 0, op,
                ": the image must not be empty; got x=", x.describe());
  return {x.size(0), x.size(1), output.h, output.w};
}

std::pair<Tensor, Tensor> max_pool2d(const Tensor& x, const Pool2dOptions& options,
                                     const Shape& sizes, DType index_dtype) {
  const OpScope scope("max_pool2d");
  const MemoryFormat format = pool_format(x);
  Tensor y = empty(sizes, {.dtype = x.dtype(), .device = x.device(), .format = format});
  Tensor index = empty(sizes, {.dtype = index_dtype, .device = x.device(), .format = format});
  if (y.numel() > 0) {
    TARN_KERNEL(pool, max_pool2d, x.device(), contiguous(x, format), options, y, index);
  }
  return {y, index};
}

Tensor max_pool2d_backward(const Tensor& gy, const Tensor& index, const Pool2dOptions& options,
                           const Shape& x_sizes, MemoryFormat format) {
  const OpScope scope("max_pool2d_backward");
  Tensor gx = empty(x_sizes, {.dtype = gy.dtype(), .device = gy.device(), .format = format});
  if (gy.numel() == 0) {
    fill_(gx, 0);
  } else {
    TARN_KERNEL(pool, max_pool2d_backward, gy.device(), contiguous(gy, format),
                contiguous(index, format), options, gx);
  }
  return gx;
}

Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options, const Shape& sizes) {
  const OpScope scope("avg_pool2d");
  const MemoryFormat format = pool_format(x);
  Tensor y = empty(sizes, {.dtype = x.dtype(), .device = x.device(), .format = format});
  if (y.numel() > 0) {
    TARN_KERNEL(pool, avg_pool2d, x.device(), contiguous(x, format), options, y);
  }
  return y;
}

Tensor avg_pool2d_backward(const Tensor& gy, const Pool2dOptions& options, const Shape& x_sizes,
                           MemoryFormat format) {
  const OpScope scope("avg_pool2d_backward");
  Tensor gx = empty(x_sizes, {.dtype = gy.dtype(), .device = gy.device(), .format = format});
  if (gy.numel() == 0) {
    fill_(gx, 0);
  } else {
    TARN_KERNEL(pool, avg_pool2d_backward, gy.device(), contiguous(gy, format), options, gx);
  }
  return gx;
}

}  // namespace tarn::raw
