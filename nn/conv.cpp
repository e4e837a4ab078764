// conv.cpp - convolution layers.
#include "tarn/nn/conv.h"

#include <cmath>
#include <type_traits>

#include "tarn/autograd/functions.h"
#include "tarn/nn/init.h"

namespace tarn::nn {
namespace {

void check_sizes(const char* layer, int64_t in, int64_t out, int64_t groups) {
  TARN_CHECK_AS(ValueError,
                in > 0 && out > 0 && groups > 0 && in % groups == 0 && out % groups == 0, layer,
                ": in and out must be positive multiples of groups; got in=", in, ", out=", out,
                ", groups=", groups);
}

Shape followed_by(const char* layer, Shape sizes, int64_t kernel) {
  TARN_CHECK_AS(ValueError, kernel > 0, layer, ": kernel must be positive; got ", kernel);
  sizes.push_back(kernel);
  return sizes;
}

Shape followed_by(const char* layer, Shape sizes, Size2 kernel) {
  TARN_CHECK_AS(ValueError, kernel.h > 0 && kernel.w > 0, layer, ": kernel must be positive; got ",
                kernel.h, "x", kernel.w);
  sizes.push_back(kernel.h);
  sizes.push_back(kernel.w);
  return sizes;
}

template <class S>
constexpr bool kOneDimension = std::is_same_v<S, int64_t>;

template <class S>
Shape weight_sizes(const ConvOptions<S>& o) {
  const char* layer = kOneDimension<S> ? "Conv1d" : "Conv2d";
  check_sizes(layer, o.in, o.out, o.groups);
  return followed_by(layer, {o.out, o.in / o.groups}, o.kernel);
}

// Transposed: [in, out / groups, ...], what a convolution the other way would have.
template <class S>
Shape weight_sizes(const ConvTransposeOptions<S>& o) {
  const char* layer = kOneDimension<S> ? "ConvTranspose1d" : "ConvTranspose2d";
  check_sizes(layer, o.in, o.out, o.groups);
  return followed_by(layer, {o.in, o.out / o.groups}, o.kernel);
}

/// What the operation takes; along one dimension a row is an image of height 1.
template <class Options>
tarn::Conv2dOptions operation(const Options& o) {
  if constexpr (kOneDimension<decltype(o.kernel)>) {
    return {.stride_w = o.stride, .pad_w = o.padding, .dilation_w = o.dilation, .groups = o.groups};
  } else {
    return {.stride_h = o.stride.h,
            .stride_w = o.stride.w,
            .pad_h = o.padding.h,
            .pad_w = o.padding.w,
            .dilation_h = o.dilation.h,
            .dilation_w = o.dilation.w,
            .groups = o.groups};
  }
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
  return tarn::conv2d(x, weight, bias, operation(options_));
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
  return tarn::conv1d(x, weight, bias, operation(options_));
}

std::string Conv1d::details() const {
  return tarn::detail::concat(options_.in, ", ", options_.out, ", ", geometry(options_));
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
  return tarn::conv_transpose2d(x, weight, bias, operation(o), o.output_padding.h,
                                o.output_padding.w);
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
  return tarn::conv_transpose1d(x, weight, bias, operation(options_), options_.output_padding);
}

std::string ConvTranspose1d::details() const {
  return tarn::detail::concat(options_.in, ", ", options_.out, ", ", geometry(options_));
}

}  // namespace tarn::nn
