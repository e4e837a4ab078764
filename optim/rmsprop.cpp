// rmsprop.cpp - options of RMSprop and Adagrad, and the calls of their kernels.
#include "tarn/optim/rmsprop.h"

#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"

namespace tarn::optim {

RMSprop::RMSprop(std::vector<Tensor> params, RMSpropOptions options)
    : RMSprop({ParamGroup<RMSpropOptions>{std::move(params), options}}) {}

RMSprop::RMSprop(const std::vector<ParamGroup<RMSpropOptions>>& groups)
    : Optimizer({"square_avg", "grad_avg", "momentum_buffer"}, true) {
  for (const auto& group : groups) add_param_group(group);
  check_has_params("RMSprop");
}

void RMSprop::add_param_group(const ParamGroup<RMSpropOptions>& group) {
  const RMSpropOptions& o = group.options;
  detail::check_not_negative(
      "RMSprop",
      {{"lr", o.lr}, {"eps", o.eps}, {"momentum", o.momentum}, {"weight_decay", o.weight_decay}});
  detail::check_option(o.alpha >= 0 && o.alpha <= 1, "RMSprop", "alpha", "in [0, 1]", o.alpha);
  add_group(group.params);
  options_.push_back(o);
}

void RMSprop::update(const Batch& batch, double grad_scale) {
  const OpScope scope("rmsprop");
  const RMSpropOptions& o = options_[batch.group];
  const RmspropArgs args{.lr = o.lr,
                         .alpha = o.alpha,
                         .eps = o.eps,
                         .weight_decay = o.weight_decay,
                         .momentum = o.momentum,
                         .centered = o.centered,
                         .maximize = o.maximize};
  TARN_KERNEL(optim, rmsprop, batch.device(), args, grad_scale, batch.params, batch.grads,
              batch.slots[0], batch.slots[1], batch.slots[2]);
}

bool RMSprop::uses_slot(size_t group, int slot) const {
  const RMSpropOptions& o = options_[group];
  return slot == 0 || (slot == 1 && o.centered) || (slot == 2 && o.momentum != 0);
}

void RMSprop::visit_options(size_t group, OptionVisitor& visitor) {
  RMSpropOptions& o = options_[group];
  visitor.number("lr", o.lr);
  visitor.number("alpha", o.alpha);
  visitor.number("eps", o.eps);
  visitor.number("weight_decay", o.weight_decay);
  visitor.number("momentum", o.momentum);
  visitor.flag("centered", o.centered);
  visitor.flag("maximize", o.maximize);
}

Adagrad::Adagrad(std::vector<Tensor> params, AdagradOptions options)
    : Adagrad({ParamGroup<AdagradOptions>{std::move(params), options}}) {}

Adagrad::Adagrad(const std::vector<ParamGroup<AdagradOptions>>& groups) : Optimizer({"sum"}, true) {
  for (const auto& group : groups) add_param_group(group);
  check_has_params("Adagrad");
}

void Adagrad::add_param_group(const ParamGroup<AdagradOptions>& group) {
  const AdagradOptions& o = group.options;
  detail::check_not_negative("Adagrad",
                             {{"lr", o.lr}, {"eps", o.eps}, {"weight_decay", o.weight_decay}});
  add_group(group.params);
  options_.push_back(o);
}

void Adagrad::update(const Batch& batch, double grad_scale) {
  const OpScope scope("adagrad");
  const AdagradOptions& o = options_[batch.group];
  const AdagradArgs args{
      .lr = o.lr, .eps = o.eps, .weight_decay = o.weight_decay, .maximize = o.maximize};
  TARN_KERNEL(optim, adagrad, batch.device(), args, grad_scale, batch.params, batch.grads,
              batch.slots[0]);
}

void Adagrad::visit_options(size_t group, OptionVisitor& visitor) {
  AdagradOptions& o = options_[group];
  visitor.number("lr", o.lr);
  visitor.number("eps", o.eps);
  visitor.number("weight_decay", o.weight_decay);
  visitor.flag("maximize", o.maximize);
}

}  // namespace tarn::optim
