// conv.cpp - convolution layers.
#include "tarn/nn/conv.h"

#include <cmath>

#include "tarn/autograd/functions.h"
#include "tarn/nn/init.h"

namespace tarn::nn {
namespace {

/// The weight's sizes without the kernel's: [out, in / groups].
Shape leading_sizes(const char* layer, int64_t in, int64_t out, int64_t groups) {
  TARN_CHECK_AS(ValueError,
                in > 0 && out > 0 && groups > 0 && in % groups == 0 && out % groups == 0, layer,
                ": in and out must be positive multiples of groups; got in=", in, ", out=", out,
                ", groups=", groups);
  return {out, in / groups};
}

Shape weight_sizes(const Conv2dOptions& o) {
  Shape sizes = leading_sizes("Conv2d", o.in, o.out, o.groups);
  sizes.push_back(o.kernel.h);
  sizes.push_back(o.kernel.w);
  return sizes;
}

Shape weight_sizes(const Conv1dOptions& o) {
  Shape sizes = leading_sizes("Conv1d", o.in, o.out, o.groups);
  sizes.push_back(o.kernel);
  return sizes;
}

// Transposed: [in, out / groups, ...], what a convolution the other way would have.
Shape weight_sizes(const ConvTranspose2dOptions& o) {
  Shape sizes = leading_sizes("ConvTranspose2d", o.out, o.in, o.groups);
  sizes.push_back(o.kernel.h);
  sizes.push_back(o.kernel.w);
  return sizes;
}

Shape weight_sizes(const ConvTranspose1dOptions& o) {
  Shape sizes = leading_sizes("ConvTranspose1d", o.out, o.in, o.groups);
  sizes.push_back(o.kernel);
  return sizes;
}

void initialise(const Parameter& weight, const Parameter& bias) {
  init::kaiming_uniform_(weight, {.slope = std::sqrt(5.0)});
  const double bound = 1 / std::sqrt(static_cast<double>(init::fans(weight).in));
  if (bias.defined()) init::uniform_(bias, -bound, bound);
}

std::string pair(Size2 s) {
  return s.h == s.w ? std::to_string(s.h) : tarn::detail::concat(s.h, "x", s.w);
}

/// "kernel=3, stride=2", what is as usual left out.
template <class Options>
std::string geometry(const Options& o) {
  std::string text = "kernel=" + pair(o.kernel);
  if (!(o.stride == Size2(1))) text += ", stride=" + pair(o.stride);
  if (!(o.padding == Size2(0))) text += ", padding=" + pair(o.padding);
  if (!(o.dilation == Size2(1))) text += ", dilation=" + pair(o.dilation);
  if (o.groups != 1) text += ", groups=" + std::to_string(o.groups);
  return text + (o.bias ? "" : ", no bias");
}

}  // namespace

Conv2d::Conv2d(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", parameter_memory(weight_sizes(o))),
      bias(this, "bias", o.bias ? parameter_memory({o.out}) : Tensor()),
      options_(o) {
  initialise(weight, bias);
}

Tensor Conv2d::forward(const Tensor& x) {
  const Options& o = options_;
  return tarn::conv2d(x, weight, bias,
                      {.stride_h = o.stride.h,
                       .stride_w = o.stride.w,
                       .pad_h = o.padding.h,
                       .pad_w = o.padding.w,
                       .dilation_h = o.dilation.h,
                       .dilation_w = o.dilation.w,
                       .groups = o.groups});
}

std::string Conv2d::details() const {
  return tarn::detail::concat(options_.in, ", ", options_.out, ", ", geometry(options_));
}

Conv1d::Conv1d(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", parameter_memory(weight_sizes(o))),
      bias(this, "bias", o.bias ? parameter_memory({o.out}) : Tensor()),
      options_(o) {
  initialise(weight, bias);
}

Tensor Conv1d::forward(const Tensor& x) {
  const Options& o = options_;
  return tarn::conv1d(
      x, weight, bias,
      {.stride_w = o.stride, .pad_w = o.padding, .dilation_w = o.dilation, .groups = o.groups});
}

std::string Conv1d::details() const {
  const Options& o = options_;
  return tarn::detail::concat(o.in, ", ", o.out, ", kernel=", o.kernel, ", stride=", o.stride,
                              ", padding=", o.padding, o.bias ? "" : ", no bias");
}

ConvTranspose2d::ConvTranspose2d(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", parameter_memory(weight_sizes(o))),
      bias(this, "bias", o.bias ? parameter_memory({o.out}) : Tensor()),
      options_(o) {
  initialise(weight, bias);
}

Tensor ConvTranspose2d::forward(const Tensor& x) {
  const Options& o = options_;
  return tarn::conv_transpose2d(x, weight, bias,
                                {.stride_h = o.stride.h,
                                 .stride_w = o.stride.w,
                                 .pad_h = o.padding.h,
                                 .pad_w = o.padding.w,
                                 .dilation_h = o.dilation.h,
                                 .dilation_w = o.dilation.w,
                                 .groups = o.groups},
                                o.output_padding.h, o.output_padding.w);
}

std::string ConvTranspose2d::details() const {
  return tarn::detail::concat(options_.in, ", ", options_.out, ", ", geometry(options_));
}

ConvTranspose1d::ConvTranspose1d(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", parameter_memory(weight_sizes(o))),
      bias(this, "bias", o.bias ? parameter_memory({o.out}) : Tensor()),
      options_(o) {
  initialise(weight, bias);
}

Tensor ConvTranspose1d::forward(const Tensor& x) {
  const Options& o = options_;
  TARN_CHECK_AS(ShapeError, x.defined() && (x.dim() == 2 || x.dim() == 3),
                "ConvTranspose1d: x must be [N, ", o.in, ", L] or [", o.in, ", L]; got ",
                x.describe());
  const Tensor row = tarn::conv_transpose2d(
      x.unsqueeze(-2), weight.unsqueeze(2), bias,
      {.stride_w = o.stride, .pad_w = o.padding, .dilation_w = o.dilation, .groups = o.groups}, 0,
      o.output_padding);
  return row.squeeze(-2);
}

std::string ConvTranspose1d::details() const {
  return tarn::detail::concat(options_.in, ", ", options_.out, ", ", geometry(options_));
}

}  // namespace tarn::nn
