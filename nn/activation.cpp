// activation.cpp - dropout.
#include "tarn/nn/activation.h"

#include "tarn/autograd/functions.h"

namespace tarn::nn {

Dropout::Dropout(Module* parent, std::string name, const Options& options)
    : Module(parent, std::move(name)), options_(options) {
  TARN_CHECK_AS(ValueError, options.p >= 0 && options.p <= 1, "Dropout: p must be in [0, 1]; got ",
                options.p);
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
  return tarn::detail::concat("p=", options_.p);
}

}  // namespace tarn::nn
