// ops_conv.cpp - convolution and its gradients.
//
// y = F(x, w) is linear in x and in w; with D and W its two adjoints, every derivative of the three
// is again one of the three, so gradients of any order need no further kernel:
//   F: dx = D(gy, w), dw = W(x, gy)    D(gy, w): dgy = F(g, w), dw = W(g, gy)
//   W(x, gy): dx = D(gy, g), dgy = F(x, g)
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/raw_conv.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {
namespace {

Tensor backward_weight(const Tensor& x, const Tensor& gy, const Shape& w_sizes,
                       const Conv2dOptions& options);

Tensor backward_data(const Tensor& gy, const Tensor& weight, const Shape& x_sizes,
                     const Conv2dOptions& options) {
  return record("conv2d_backward_data", raw::conv2d_backward_data(gy, weight, x_sizes, options),
                {gy, weight}, save(gy, weight),
                [options, w_sizes = weight.sizes()](const Saved& s, const Tensor& g, Wants w) {
                  return Grads(w[0] ? conv2d(g, s[1], {}, options) : Tensor(),
                               w[1] ? backward_weight(g, s[0], w_sizes, options) : Tensor());
                });
}

Tensor backward_weight(const Tensor& x, const Tensor& gy, const Shape& w_sizes,
                       const Conv2dOptions& options) {
  return record("conv2d_backward_weight",
                raw::conv2d_backward_weight(x, gy, w_sizes, options, false).first, {x, gy},
                save(x, gy),
                [options, x_sizes = x.sizes()](const Saved& s, const Tensor& g, Wants w) {
                  return Grads(w[0] ? backward_data(s[1], g, x_sizes, options) : Tensor(),
                               w[1] ? conv2d(s[0], g, {}, options) : Tensor());
                });
}

// Of rows as images of height 1.
Conv2dOptions along_width(Conv2dOptions options) {
  options.stride_h = options.dilation_h = 1;
  options.pad_h = 0;
  return options;
}

// Per-channel sum, the gradient of a bias.
Tensor channel_sum(const Tensor& g) {
  return reshape(sum_to_size(g, {1, g.size(1), 1, 1}), {g.size(1)});
}

Tensor conv2d_batched(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Conv2dOptions& options) {
  Tensor out = raw::conv2d(x, weight, bias, options);
  return record("conv2d", out, {x, weight, bias}, save(x, weight),
                [options, x_sizes = x.sizes(), w_sizes = weight.sizes()](const Saved& s,
                                                                         const Tensor& g, Wants w) {
                  Tensor gx, gw, gb;
                  // The result is channels_last; so is its gradient, once, for both uses.
                  const Tensor gy = contiguous(g, MemoryFormat::kChannelsLast);
                  if (w[0]) gx = backward_data(gy, s[1], x_sizes, options);
                  if (w[1] && w[2] && !grad_enabled()) {
                    std::tie(gw, gb) =
                        raw::conv2d_backward_weight(s[0], gy, w_sizes, options, true);
                  } else {
                    if (w[1]) gw = backward_weight(s[0], gy, w_sizes, options);
                    if (w[2]) gb = channel_sum(gy);
                  }
                  return Grads(gx, gw, gb);
                });
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  if (const auto c = cast(CastPolicy::kLow, x, weight, bias)) {
    return conv2d(c[0], c[1], c[2], options);
  }
  const OpScope scope("conv2d");
  if (x.defined() && x.dim() == 3) {
    return squeeze(conv2d_batched(unsqueeze(x, 0), weight, bias, options), 0);
  }
  return conv2d_batched(x, weight, bias, options);
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  raw::check_defined("conv1d", "x", x);
  raw::check_defined("conv1d", "weight", weight);
  TARN_CHECK_AS(ShapeError, (x.dim() == 3 || x.dim() == 2) && weight.dim() == 3,
                "conv1d: x must be [N, C, L] or [C, L] and weight [K, C/groups, S]; got x=",
                x.describe(), ", weight=", weight.describe());
  return squeeze(conv2d(unsqueeze(x, -2), unsqueeze(weight, 2), bias, along_width(options)), -2);
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Conv2dOptions& o, int64_t output_padding_h,
                        int64_t output_padding_w) {
  if (const auto c = cast(CastPolicy::kLow, x, weight, bias)) {
    return conv_transpose2d(c[0], c[1], c[2], o, output_padding_h, output_padding_w);
  }
  const OpScope scope("conv_transpose2d");
  raw::check_defined("conv_transpose2d", "x", x);
  raw::check_defined("conv_transpose2d", "weight", weight);
  raw::check_same_device("conv_transpose2d", x, weight);
  if (bias.defined()) raw::check_same_device("conv_transpose2d", x, bias);
  if (x.dim() == 3) {
    return squeeze(
        conv_transpose2d(unsqueeze(x, 0), weight, bias, o, output_padding_h, output_padding_w), 0);
  }
  TARN_CHECK_AS(ShapeError, x.dim() == 4 && weight.dim() == 4 && x.size(1) == weight.size(0),
                "conv_transpose2d: x must be [N, C, H, W] and weight [C, K/groups, R, S]; got x=",
                x.describe(), ", weight=", weight.describe());
  raw::check_conv_options("conv_transpose2d", o);
  TARN_CHECK_AS(ShapeError, x.size(1) % o.groups == 0,
                "conv_transpose2d: input channels must be divisible by groups; got x=",
                x.describe(), ", groups=", o.groups);
  const int64_t channels = weight.size(1) * o.groups;
  TARN_CHECK_AS(
      ShapeError, !bias.defined() || (bias.sizes() == Shape{channels} && bias.dtype() == x.dtype()),
      "conv_transpose2d: bias must be [", channels, "] ", x.dtype(), "; got ", bias.describe());
  TARN_CHECK_AS(ValueError,
                output_padding_h >= 0 && output_padding_w >= 0 &&
                    output_padding_h < std::max(o.stride_h, o.dilation_h) &&
                    output_padding_w < std::max(o.stride_w, o.dilation_w),
                "conv_transpose2d: output padding must be at least 0 and smaller than stride or "
                "dilation; got [",
                output_padding_h, ", ", output_padding_w, "]");
  // An output padding of a stride or more is what further input of zeros would give.
  const int64_t more_h = output_padding_h / o.stride_h, more_w = output_padding_w / o.stride_w;
  if (more_h > 0 || more_w > 0) {
    return conv_transpose2d(pad(x, {0, more_w, 0, more_h}), weight, bias, o,
                            output_padding_h % o.stride_h, output_padding_w % o.stride_w);
  }
  const auto out_size = [](int64_t in, int64_t stride, int64_t pad, int64_t dilation,
                           int64_t kernel, int64_t extra) {
    return (in - 1) * stride - 2 * pad + dilation * (kernel - 1) + extra + 1;
  };
  const Shape sizes{
      x.size(0), channels,
      out_size(x.size(2), o.stride_h, o.pad_h, o.dilation_h, weight.size(2), output_padding_h),
      out_size(x.size(3), o.stride_w, o.pad_w, o.dilation_w, weight.size(3), output_padding_w)};
  TARN_CHECK_AS(ShapeError, sizes[2] > 0 && sizes[3] > 0,
                "conv_transpose2d: the result must have pixels; got [", sizes[2], ", ", sizes[3],
                "] from x=", x.describe(), ", weight=", weight.describe(), ", stride=[", o.stride_h,
                ", ", o.stride_w, "], padding=[", o.pad_h, ", ", o.pad_w, "]");
  Tensor out = backward_data(x, weight, sizes, o);
  return bias.defined() ? add(out, reshape(bias, {1, -1, 1, 1})) : out;
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Conv2dOptions& options, int64_t output_padding) {
  raw::check_defined("conv_transpose1d", "x", x);
  raw::check_defined("conv_transpose1d", "weight", weight);
  TARN_CHECK_AS(ShapeError, (x.dim() == 3 || x.dim() == 2) && weight.dim() == 3,
                "conv_transpose1d: x must be [N, C, L] or [C, L] and weight [C, K/groups, S]; "
                "got x=",
                x.describe(), ", weight=", weight.describe());
  return squeeze(conv_transpose2d(unsqueeze(x, -2), unsqueeze(weight, 2), bias,
                                  along_width(options), 0, output_padding),
                 -2);
}

}  // namespace tarn
