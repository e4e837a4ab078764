// sgd.cpp - SGD's options, and the call of its kernel.
#include "tarn/optim/sgd.h"

#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"

namespace tarn::optim {

SGD::SGD(std::vector<Tensor> params, SGDOptions options)
    : SGD({ParamGroup<SGDOptions>{std::move(params), options}}) {}

SGD::SGD(const std::vector<ParamGroup<SGDOptions>>& groups)
    : Optimizer({"momentum_buffer"}, false) {
  for (const auto& group : groups) add_param_group(group);
  check_has_params("SGD");
}

void SGD::add_param_group(const ParamGroup<SGDOptions>& group) {
  const SGDOptions& o = group.options;
  detail::check_not_negative(
      "SGD", {{"lr", o.lr}, {"momentum", o.momentum}, {"weight_decay", o.weight_decay}});
  TARN_CHECK_AS(ValueError, !o.nesterov || (o.momentum > 0 && o.dampening == 0),
                "SGD: nesterov needs momentum and no dampening; got momentum=", o.momentum,
                ", dampening=", o.dampening);
  add_group(group.params);
  options_.push_back(o);
}

void SGD::update(const Batch& batch, double grad_scale) {
  const OpScope scope("sgd");
  const SGDOptions& o = options_[batch.group];
  const SgdArgs args{.lr = o.lr,
                     .momentum = o.momentum,
                     .dampening = o.dampening,
                     .weight_decay = o.weight_decay,
                     .nesterov = o.nesterov,
                     .maximize = o.maximize,
                     .first_step = batch.fresh};
  TARN_KERNEL(optim, sgd, batch.device(), args, grad_scale, batch.params, batch.grads,
              batch.slots[0]);
}

bool SGD::uses_slot(size_t group, int slot) const {
  return slot == 0 && options_[group].momentum != 0;
}

void SGD::visit_options(size_t group, OptionVisitor& visitor) {
  SGDOptions& o = options_[group];
  visitor.number("lr", o.lr);
  visitor.number("momentum", o.momentum);
  visitor.number("dampening", o.dampening);
  visitor.number("weight_decay", o.weight_decay);
  visitor.flag("nesterov", o.nesterov);
  visitor.flag("maximize", o.maximize);
}

}  // namespace tarn::optim
