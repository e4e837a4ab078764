// rmsprop.h - RMSprop and Adagrad: steps divided by a running size of the gradient.
#pragma once

#include "tarn/optim/optimizer.h"

namespace tarn::optim {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
};

/// s = alpha s + (1 - alpha) g^2; p -= lr g / (sqrt(s) + eps); centered subtracts the squared mean
/// gradient under the root; with momentum, buffer = momentum buffer + step; p -= lr buffer.
/// Source: Tieleman and Hinton 2012.
class RMSprop final : public Optimizer {
 public:
  explicit RMSprop(std::vector<Tensor> params, RMSpropOptions options = {});
  explicit RMSprop(const std::vector<ParamGroup<RMSpropOptions>>& groups);
  /// One more group, for layers that are unfrozen later; its schedule counts from the group's own
  /// rate. Throws as the constructor does; then nothing is changed.
  void add_param_group(const ParamGroup<RMSpropOptions>& group);
  RMSpropOptions& options(size_t group = 0) { return at_group(options_, group); }
  double* momentum(size_t group) override { return &at_group(options_, group).momentum; }

 private:
  void update(const Batch& batch, double grad_scale) override;
  bool uses_slot(size_t group, int slot) const override;
  double& lr_ref(size_t group) override { return at_group(options_, group).lr; }
  void visit_options(size_t group, OptionVisitor& visitor) override;

  std::vector<RMSpropOptions> options_;
};

struct AdagradOptions {
  double lr = 1e-2;
  double eps = 1e-10;
  double weight_decay = 0;
  bool maximize = false;
};

/// s += g^2; p -= lr g / (sqrt(s) + eps). Source: Duchi et al. 2011.
class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(std::vector<Tensor> params, AdagradOptions options = {});
  explicit Adagrad(const std::vector<ParamGroup<AdagradOptions>>& groups);
  /// One more group, for layers that are unfrozen later; its schedule counts from the group's own
  /// rate. Throws as the constructor does; then nothing is changed.
  void add_param_group(const ParamGroup<AdagradOptions>& group);
  AdagradOptions& options(size_t group = 0) { return at_group(options_, group); }

 private:
  void update(const Batch& batch, double grad_scale) override;
  bool uses_slot(size_t, int slot) const override { return slot == 0; }
  double& lr_ref(size_t group) override { return at_group(options_, group).lr; }
  void visit_options(size_t group, OptionVisitor& visitor) override;

  std::vector<AdagradOptions> options_;
};

}  // namespace tarn::optim
