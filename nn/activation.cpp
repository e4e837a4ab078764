// activation.cpp - activations with parameters, softmax, dropout.
#include "tarn/nn/activation.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/raw_random.h"
#include "tarn/nn/init.h"

namespace tarn::nn {
namespace {

std::string text(const SoftmaxOptions& options) {
  return tarn::detail::concat("dim=", options.dim);
}

std::string text(const DropoutOptions& options) {
  return tarn::detail::concat("p=", options.p);
}

const PReluOptions& checked(const PReluOptions& o) {
  TARN_CHECK_AS(ValueError, o.count > 0, "PReLU: count must be positive; got ", o.count);
  return o;
}

}  // namespace

PReLU::PReLU(Module* parent, std::string name, const Options& options)
    : Module(parent, std::move(name)),
      weight(this, "weight", parameter_memory({checked(options).count})) {
  init::constant_(weight, options.init);
}

Tensor PReLU::forward(const Tensor& x) {
  const int64_t count = weight.size(0);
  Shape sizes;
  if (count > 1) {
    TARN_CHECK_AS(ShapeError, x.dim() >= 2 && x.size(1) == count, "PReLU: x must be [N, ", count,
                  ", ...]; got ", x.describe());
    sizes = Shape::filled(x.dim(), 1);
    sizes[1] = count;
  }
  // Without what is positive: were that infinite, the slope's gradient would be 0 * inf.
  const Tensor positive = gt(x, 0);
  return where(positive, x, masked_fill(x, positive, 0) * weight.view(sizes));
}

std::string PReLU::details() const {
  return std::to_string(weight.size(0));
}

Tensor Softmax::forward(const Tensor& x) {
  return tarn::softmax(x, options_.dim);
}

std::string Softmax::details() const {
  return text(options_);
}

Tensor LogSoftmax::forward(const Tensor& x) {
  return tarn::log_softmax(x, options_.dim);
}

std::string LogSoftmax::details() const {
  return text(options_);
}

Dropout::Dropout(Module* parent, std::string name, const Options& options)
    : Module(parent, std::move(name)), options_(options) {
  raw::check_probability("Dropout", options.p);
}

Tensor Dropout::forward(const Tensor& x) {
  if (options_.p == 0) return x;
  return tarn::dropout(x, options_.p, training());
}

Tensor Dropout::add(const Tensor& x, const Tensor& residual) {
  const CallScope scope(*this);
  if (is_watched()) return (*this)(x) + residual;
  return dropout_add(x, residual, options_.p, training());
}

std::string Dropout::details() const {
  return text(options_);
}

Dropout2d::Dropout2d(Module* parent, std::string name, const Options& options)
    : Module(parent, std::move(name)), options_(options) {
  raw::check_probability("Dropout2d", options.p);
}

Tensor Dropout2d::forward(const Tensor& x) {
  return tarn::dropout2d(x, options_.p, training());
}

std::string Dropout2d::details() const {
  return text(options_);
}

}  // namespace tarn::nn
