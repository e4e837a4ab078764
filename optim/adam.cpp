// adam.cpp - options of Adam and AdamW, and the call of their kernel.
#include "tarn/optim/adam.h"

#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"

namespace tarn::optim {
namespace {

ParamGroup<AdamOptions> as_adam(const ParamGroup<AdamWOptions>& group) {
  const AdamWOptions& o = group.options;
  return {group.params, {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.amsgrad, o.maximize}};
}

std::vector<ParamGroup<AdamOptions>> as_adam(const std::vector<ParamGroup<AdamWOptions>>& groups) {
  std::vector<ParamGroup<AdamOptions>> converted;
  for (const auto& group : groups) converted.push_back(as_adam(group));
  return converted;
}

}  // namespace

Adam::Adam(const std::vector<ParamGroup<AdamOptions>>& groups, bool decoupled)
    : Optimizer({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, true), decoupled_(decoupled) {
  for (const auto& group : groups) Adam::add_param_group(group);
  check_has_params(decoupled ? "AdamW" : "Adam");
}

void Adam::add_param_group(const ParamGroup<AdamOptions>& group) {
  const AdamOptions& o = group.options;
  const char* name = decoupled_ ? "AdamW" : "Adam";
  detail::check_not_negative(name,
                             {{"lr", o.lr}, {"eps", o.eps}, {"weight_decay", o.weight_decay}});
  detail::check_option(o.beta1 >= 0 && o.beta1 < 1, name, "beta1", "in [0, 1)", o.beta1);
  detail::check_option(o.beta2 >= 0 && o.beta2 < 1, name, "beta2", "in [0, 1)", o.beta2);
  add_group(group.params);
  options_.push_back(o);
}

Adam::Adam(std::vector<Tensor> params, AdamOptions options)
    : Adam({ParamGroup<AdamOptions>{std::move(params), options}}) {}
Adam::Adam(const std::vector<ParamGroup<AdamOptions>>& groups) : Adam(groups, false) {}
AdamW::AdamW(std::vector<Tensor> params, AdamWOptions options)
    : AdamW({ParamGroup<AdamWOptions>{std::move(params), options}}) {}
AdamW::AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups) : Adam(as_adam(groups), true) {}
void AdamW::add_param_group(const ParamGroup<AdamWOptions>& group) {
  Adam::add_param_group(as_adam(group));
}

void Adam::update(const Batch& batch, double grad_scale) {
  const OpScope scope(decoupled_ ? "adamw" : "adam");
  const AdamOptions& o = options_[batch.group];
  const AdamArgs args{.lr = o.lr,
                      .beta1 = o.beta1,
                      .beta2 = o.beta2,
                      .eps = o.eps,
                      .weight_decay = o.weight_decay,
                      .decoupled = decoupled_,
                      .amsgrad = o.amsgrad,
                      .maximize = o.maximize,
                      .step = batch.step};
  TARN_KERNEL(optim, adam, batch.device(), args, grad_scale, batch.params, batch.grads,
              batch.slots[0], batch.slots[1], batch.slots[2]);
}

bool Adam::uses_slot(size_t group, int slot) const {
  return slot < 2 || options_[group].amsgrad;
}

void Adam::visit_options(size_t group, OptionVisitor& visitor) {
  AdamOptions& o = options_[group];
  visitor.number("lr", o.lr);
  visitor.pair("betas", o.beta1, o.beta2);
  visitor.number("eps", o.eps);
  visitor.number("weight_decay", o.weight_decay);
  visitor.flag("amsgrad", o.amsgrad);
  visitor.flag("maximize", o.maximize);
}

}  // namespace tarn::optim
