// mlp.h - a multi-layer perceptron: linear layers with ReLU between them.
#pragma once

#include <vector>

#include "tarn/nn/activation.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/sequential.h"

namespace tarn::nn::models {

struct MlpOptions {
  std::vector<int64_t> sizes;  ///< inputs, hidden layers, outputs: {784, 128, 10}
  double dropout = 0;          ///< after every hidden layer
};

/// x [N, ...] with sizes[0] values per item -> [N, sizes.back()].
class Mlp final : public Module {
 public:
  using Options = MlpOptions;
  /// Throws ValueError on fewer than two sizes.
  explicit Mlp(const Options& options);
  Tensor forward(const Tensor& x) override;

  ModuleList<Linear> layers{this, "layers"};
  Dropout dropout;
};

}  // namespace tarn::nn::models
