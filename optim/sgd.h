// sgd.h - stochastic gradient descent with momentum.
#pragma once

#include "tarn/optim/optimizer.h"

namespace tarn::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  ///< added to the gradient (L2)
  bool nesterov = false;    ///< needs momentum and no dampening
  bool maximize = false;
};

/// g = grad + weight_decay p; buffer = momentum buffer + (1 - dampening) g (g itself at first);
/// p -= lr buffer, or lr (g + momentum buffer) with nesterov.
/// Source: Sutskever et al. 2013, in PyTorch's form (lr outside the buffer).
class SGD final : public Optimizer {
 public:
  explicit SGD(std::vector<Tensor> params, SGDOptions options = {});
  explicit SGD(const std::vector<ParamGroup<SGDOptions>>& groups);
  /// One more group, for layers that are unfrozen later; its schedule counts from the group's own
  /// rate. Throws as the constructor does; then nothing is changed.
  void add_param_group(const ParamGroup<SGDOptions>& group);
  SGDOptions& options(size_t group = 0) { return at_group(options_, group); }
  double* momentum(size_t group) override { return &at_group(options_, group).momentum; }

 private:
  void update(const Batch& batch, double grad_scale) override;
  bool uses_slot(size_t group, int slot) const override;
  double& lr_ref(size_t group) override { return at_group(options_, group).lr; }
  void visit_options(size_t group, OptionVisitor& visitor) override;

  std::vector<SGDOptions> options_;
};

}  // namespace tarn::optim
