// adam.h - Adam and AdamW.
#pragma once

#include "tarn/optim/optimizer.h"

namespace tarn::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  ///< added to the gradient (L2)
  bool amsgrad = false;
  bool maximize = false;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;  ///< p *= 1 - lr * weight_decay, apart from the gradient
  bool amsgrad = false;
  bool maximize = false;
};

/// m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
/// p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps).
/// Source: Kingma and Ba 2015, arXiv:1412.6980; amsgrad: Reddi et al. 2018.
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Tensor> params, AdamOptions options = {});
  explicit Adam(const std::vector<ParamGroup<AdamOptions>>& groups);
  /// One more group, for layers that are unfrozen later; its schedule counts from the group's own
  /// rate. Throws as the constructor does; then nothing is changed.
  void add_param_group(const ParamGroup<AdamOptions>& group);
  AdamOptions& options(size_t group = 0) { return at_group(options_, group); }
  double* momentum(size_t group) override { return &at_group(options_, group).beta1; }

 protected:
  Adam(const std::vector<ParamGroup<AdamOptions>>& groups, bool decoupled);

 private:
  void update(const Batch& batch, double grad_scale) override;
  bool uses_slot(size_t group, int slot) const override;
  double& lr_ref(size_t group) override { return at_group(options_, group).lr; }
  void visit_options(size_t group, OptionVisitor& visitor) override;

  std::vector<AdamOptions> options_;
  bool decoupled_;
};

/// Adam with decoupled weight decay. Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
class AdamW final : public Adam {
 public:
  explicit AdamW(std::vector<Tensor> params, AdamWOptions options = {});
  explicit AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups);
  void add_param_group(const ParamGroup<AdamWOptions>& group);
};

}  // namespace tarn::optim
