// raw_conv.cpp - checks and layout for convolution.
#include "tarn/core/raw_conv.h"

#include <algorithm>
#include <limits>

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::raw {
namespace {

Tensor channels_last(const Tensor& x) {
  return contiguous(x, MemoryFormat::kChannelsLast);
}

}  // namespace

void check_conv_options(const char* op, const Conv2dOptions& o) {
  TARN_CHECK_AS(ValueError,
                o.stride_h > 0 && o.stride_w > 0 && o.dilation_h > 0 && o.dilation_w > 0, op,
                ": stride and dilation must be positive; got stride=[", o.stride_h, ", ",
                o.stride_w, "], dilation=[", o.dilation_h, ", ", o.dilation_w, "]");
  TARN_CHECK_AS(ValueError, o.pad_h >= 0 && o.pad_w >= 0, op,
                ": padding must not be negative; got [", o.pad_h, ", ", o.pad_w, "]");
  TARN_CHECK_AS(ValueError, o.groups > 0, op, ": groups must be positive; got ", o.groups);
  // Then no product of them with a size leaves 64 bits.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t most =
      std::max({o.stride_h, o.stride_w, o.dilation_h, o.dilation_w, o.pad_h, o.pad_w, o.groups});
  TARN_CHECK_AS(ValueError, most <= kMost, op,
                ": stride, dilation, padding and groups must be below 2^31; got ", most);
}

Shape conv2d_sizes(const char* op, const Shape& x, const Shape& weight, const Conv2dOptions& o) {
  TARN_CHECK_AS(ShapeError, x.dim() == 4 && weight.dim() == 4, op,
                ": x must be [N, C, H, W] and weight [K, C/groups, R, S]; got x=", x,
                ", weight=", weight);
  check_conv_options(op, o);
  TARN_CHECK_AS(ShapeError, x[1] == weight[1] * o.groups, op,
                ": input channels must equal weight.size(1)*groups; got x=", x, ", weight=", weight,
                ", groups=", o.groups, " (", x[1], " vs ", weight[1] * o.groups, ")");
  TARN_CHECK_AS(ShapeError, weight[0] % o.groups == 0, op,
                ": output channels must be divisible by groups; got weight=", weight,
                ", groups=", o.groups);
  TARN_CHECK_AS(ShapeError, weight[1] > 0 && weight[2] > 0 && weight[3] > 0, op,
                ": the kernel must not be empty; got weight=", weight);
  const int64_t h = x[2] + 2 * o.pad_h - o.dilation_h * (weight[2] - 1) - 1;
  const int64_t w = x[3] + 2 * o.pad_w - o.dilation_w * (weight[3] - 1) - 1;
  TARN_CHECK_AS(ShapeError, h >= 0 && w >= 0, op,
                ": the kernel must fit into the padded input; got x=", x, ", weight=", weight,
                ", padding=[", o.pad_h, ", ", o.pad_w, "], dilation=[", o.dilation_h, ", ",
                o.dilation_w, "]");
  return {x[0], weight[0], h / o.stride_h + 1, w / o.stride_w + 1};
}

namespace {
void check_operands(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_defined(op, "x", x);
  check_defined(op, "weight", weight);
  check_same_device(op, x, weight);
  TARN_CHECK_AS(DTypeError, x.dtype() == weight.dtype() && is_floating(x.dtype()), op,
                ": x and weight must have one floating dtype; got x=", x.describe(),
                ", weight=", weight.describe());
  if (!bias.defined()) return;
  check_same_device(op, x, bias);
  TARN_CHECK_AS(ShapeError, bias.sizes() == Shape{weight.size(0)} && bias.dtype() == x.dtype(), op,
                ": bias must be [", weight.size(0), "] ", x.dtype(), "; got ", bias.describe());
}
}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& o) {
  check_operands("conv2d", x, weight, bias);
  const Shape sizes = conv2d_sizes("conv2d", x.sizes(), weight.sizes(), o);
  Tensor y = empty(
      sizes, {.dtype = x.dtype(), .device = x.device(), .format = MemoryFormat::kChannelsLast});
  if (y.numel() == 0) return y;
  TARN_KERNEL(conv, forward, x.device(), channels_last(x), contiguous(weight),
              bias.defined() ? contiguous(bias) : bias, o, y);
  return y;
}

Tensor conv2d_backward_data(const Tensor& gy, const Tensor& weight, const Shape& x_sizes,
                            const Conv2dOptions& o) {
  check_operands("conv2d_backward_data", gy, weight, Tensor());
  const Shape expected = conv2d_sizes("conv2d_backward_data", x_sizes, weight.sizes(), o);
  TARN_CHECK_AS(ShapeError, gy.sizes() == expected,
                "conv2d_backward_data: the gradient must have the result's sizes ", expected,
                "; got ", gy.describe());
  const TensorOptions like{
      .dtype = gy.dtype(), .device = gy.device(), .format = MemoryFormat::kChannelsLast};
  if (gy.numel() == 0) return zeros(x_sizes, like);
  Tensor gx = empty(x_sizes, like);
  if (gx.numel() == 0) return gx;
  TARN_KERNEL(conv, backward_data, gy.device(), channels_last(gy), contiguous(weight), o, gx);
  return gx;
}

std::pair<Tensor, Tensor> conv2d_backward_weight(const Tensor& x, const Tensor& gy,
                                                 const Shape& w_sizes, const Conv2dOptions& o,
                                                 bool with_bias) {
  check_operands("conv2d_backward_weight", x, gy, Tensor());
  const Shape expected = conv2d_sizes("conv2d_backward_weight", x.sizes(), w_sizes, o);
  TARN_CHECK_AS(ShapeError, gy.sizes() == expected,
                "conv2d_backward_weight: the gradient must have the result's sizes ", expected,
                "; got ", gy.describe());
  const TensorOptions like{.dtype = x.dtype(), .device = x.device()};
  if (gy.numel() == 0) {
    return {zeros(w_sizes, like), with_bias ? zeros({w_sizes[0]}, like) : Tensor()};
  }
  Tensor gw = empty(w_sizes, like);
  Tensor gb = with_bias ? empty({w_sizes[0]}, like) : Tensor();
  TARN_KERNEL(conv, backward_weight, x.device(), channels_last(x), channels_last(gy), o, gw, gb);
  return {gw, gb};
}

}  // namespace tarn::raw
