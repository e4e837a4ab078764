// mlp.cpp - the multi-layer perceptron.
#include "tarn/nn/models/mlp.h"

#include "tarn/autograd/functions_elementwise.h"

namespace tarn::nn::models {

Mlp::Mlp(const Options& o) : dropout(this, "dropout", {.p = o.dropout}) {
  TARN_CHECK_AS(ValueError, o.sizes.size() >= 2,
                "Mlp: sizes must name at least inputs and outputs; got ", o.sizes.size());
  for (size_t i = 0; i + 1 < o.sizes.size(); ++i) {
    layers.add<Linear>({.in = o.sizes[i], .out = o.sizes[i + 1]});
  }
}

Tensor Mlp::forward(const Tensor& x) {
  Tensor y = x.dim() == 2 ? x : x.flatten(1);
  for (size_t i = 0; i + 1 < layers.size(); ++i) y = dropout(tarn::relu(layers[i](y)));
  return layers[layers.size() - 1](y);
}

}  // namespace tarn::nn::models
