// linear.cpp - Linear and Embedding.
#include "tarn/nn/linear.h"

#include <cmath>

#include "tarn/autograd/functions.h"
#include "tarn/nn/init.h"

namespace tarn::nn {
namespace {
const LinearOptions& checked(const LinearOptions& o) {
  TARN_CHECK_AS(ValueError, o.in > 0 && o.out > 0,
                "Linear: in and out must be positive; got in=", o.in, ", out=", o.out);
  return o;
}
}  // namespace

Linear::Linear(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", parameter_memory({checked(o).out, o.in})),
      bias(this, "bias", o.bias ? parameter_memory({o.out}) : Tensor()) {
  init::kaiming_uniform_(weight, {.slope = std::sqrt(5.0)});
  const double bound = 1 / std::sqrt(static_cast<double>(o.in));
  if (o.bias) init::uniform_(bias, -bound, bound);
}

Tensor Linear::forward(const Tensor& x) {
  return tarn::linear(x, weight, bias);
}

Tensor Linear::gelu(const Tensor& x, bool tanh_approximation) {
  const CallScope scope(*this);
  if (is_watched()) return tarn::gelu((*this)(x), tanh_approximation);
  return tarn::linear_gelu(x, weight, bias, tanh_approximation);
}

std::string Linear::details() const {
  return tarn::detail::concat(weight.size(1), ", ", weight.size(0),
                              bias.defined() ? "" : ", no bias");
}

Embedding::Embedding(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", parameter_memory({o.count, o.size})),
      padding_(o.padding) {
  TARN_CHECK_AS(ValueError, o.padding >= -1 && o.padding < o.count,
                "Embedding: padding must be a row or -1; got padding=", o.padding,
                ", count=", o.count);
  init::normal_(weight);
  if (padding_ >= 0) init::zeros_(weight.detach().select(0, padding_));
}

Tensor Embedding::forward(const Tensor& x) {
  return tarn::embedding(weight, x, padding_);
}

std::string Embedding::details() const {
  return tarn::detail::concat(weight.size(0), ", ", weight.size(1));
}

}  // namespace tarn::nn
