// zero.cpp - ZeroDataParallel: units of parameters, and the optimizer that updates their shards.
#include "tarn/dist/zero.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "tarn/autograd/recompute.h"
#include "tarn/core/factory.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/buckets.h"
#include "tarn/optim/gradients.h"

namespace tarn::dist {
namespace {

BucketCaps caps_of(const ZeroOptions& options) {
  return {options.bucket_cap_mb, options.first_bucket_mb, options.last_bucket_mb};
}

void check_options(const ZeroOptions& options) {
  TARN_CHECK_AS(ValueError, options.stage >= 1 && options.stage <= 3,
                "zero: stage must be 1, 2 or 3; got ", options.stage,
                options.stage == 0 ? "; stage 0 is DistributedDataParallel" : "");
  caps_of(options).check("zero");
}

std::string parameter_text(size_t index, const Tensor& param) {
  return tarn::detail::concat("parameter ", index, "=", param.describe());
}

}  // namespace

ZeroDataParallel::ZeroDataParallel(nn::Module& module, ProcessGroup& group, ZeroOptions options)
    : module_(module), group_(group), options_(std::move(options)) {
  check_options(options_);
  const TensorDict parameters = module.named_parameters();
  claim_.emplace("zero", "ZeroDataParallel", parameters);
  check_same_model("zero", module, group);
  for (const auto& [name, param] : parameters) {
    TARN_CHECK_AS(ValueError, !param.storage()->is_away(), "zero: ", name,
                  " went with a ZeroDataParallel of stage 3; give its module values of its own");
  }
  TensorDict trained;
  for (const auto& [name, param] : parameters) {
    (param.requires_grad() ? trained : frozen_).add(name, param);
  }
  check_same_layout(group, "zero: parameters that require a gradient", trained);
  TARN_CHECK_AS(ValueError, !trained.empty(), "zero: no parameter requires a gradient");
  for (const auto& [name, buffer] : module.named_buffers()) buffers_.push_back(buffer);
  // One after the other: a copy of all of them at a time may be what there is no room for.
  for (const auto& [name, param] : parameters) broadcast_values(group, {param});
  broadcast_values(group, buffers_);
  make_reducer(options_.stage == 3 ? make_module_units() : make_buckets());
  hook_ = module_.register_forward_pre_hook([this](nn::Module&, const Tensor&) {
    before_forward();
    return Tensor();
  });
}

ZeroDataParallel::~ZeroDataParallel() {
  module_.remove_hook(hook_);
  for (const auto& attached : attachments()) attached->zero = nullptr;
}

FlatUnit* ZeroDataParallel::add_unit(const TensorDict& parameters) {
  units_.push_back(std::make_unique<FlatUnit>(group_, parameters, options_.stage == 3));
  FlatUnit* unit = units_.back().get();
  for (const FlatUnit::Member& m : unit->members()) {
    by_param_[m.param.impl().get()] = by_shard_[m.shard.impl().get()] = {unit, &m};
  }
  return unit;
}

// In the reverse order of registration, which is about the order in which gradients come.
std::vector<FlatUnit*> ZeroDataParallel::make_buckets() {
  std::vector<std::string> names;
  std::vector<Tensor> params;
  for (const auto& [name, param] : module_.named_parameters()) {
    by_param_[param.impl().get()] = {};
    if (!param.requires_grad()) continue;
    names.push_back(name);
    params.push_back(param);
  }
  std::vector<size_t> order;
  for (size_t i = params.size(); i-- > 0;) order.push_back(i);
  std::vector<FlatUnit*> buckets;
  for (const std::vector<size_t>& bucket : plan_buckets(params, order, caps_of(options_))) {
    TensorDict parameters;
    for (size_t i : bucket) parameters.add(names[i], params[i]);
    buckets.push_back(add_unit(parameters));
  }
  return buckets;
}

// A module's parameters of each dtype, those with gradients apart: only they have buffers for them.
// The root's gradients come last: it holds what the model uses first.
std::vector<FlatUnit*> ZeroDataParallel::make_module_units() {
  const UnitRule rule = options_.unit ? options_.unit : list_members(options_.min_unit_numel);
  std::vector<UnitGather::Unit> units;
  std::vector<FlatUnit*> trained;
  for (const UnitPlan& plan : plan_units(module_, rule)) {
    std::map<std::pair<DType, bool>, TensorDict> kinds;
    for (const auto& [name, param] : plan.parameters) {
      kinds[{param.dtype(), param.requires_grad()}].add(name, param);
    }
    units.push_back({plan.module, {}});
    for (const auto& [kind, parameters] : kinds) {
      units.back().flats.push_back(add_unit(parameters));
      if (units_.back()->trained()) trained.push_back(units_.back().get());
    }
  }
  std::reverse(trained.begin(), trained.end());
  gather_ = std::make_unique<UnitGather>(
      std::move(units), UnitGatherOptions{.prefetch = options_.prefetch,
                                          .all_at_once = options_.find_unused_parameters});
  return trained;
}

void ZeroDataParallel::make_reducer(std::vector<FlatUnit*> trained) {
  // Where ranks use other parameters, their gradients come between other gathers.
  const bool overlap =
      options_.overlap && !(options_.stage == 3 && options_.find_unused_parameters);
  reducer_ = std::make_unique<ShardReducer>(
      group_, std::move(trained),
      ShardReducerOptions{.keep_buffers = options_.stage == 1,
                          .find_unused_parameters = options_.find_unused_parameters,
                          .overlap = overlap});
  reducer_->set_before_reduce([this] { before_reduce(); });
  if (gather_) {
    reducer_->set_unit_done([this](FlatUnit& unit) { gather_->gradients_done(unit); });
  }
}

void ZeroDataParallel::before_forward() {
  if (!module_.training() || is_recomputing() || !reducer_->sync()) return;
  if (options_.broadcast_buffers && !buffers_.empty()) broadcast_values(group_, buffers_);
}

void ZeroDataParallel::before_reduce() {
  TARN_CHECK_AS(ValueError, reducer_->passes() == 0 || !attachments().empty(),
                "zero: a second backward, and no optimizer is attached; make one of zero.shards() "
                "and call zero.attach(optimizer), so that the parameters follow its steps");
}

TensorDict ZeroDataParallel::named_shards() const {
  TensorDict shards;
  for (const auto& [name, param] : module_.named_parameters()) {
    const auto found = by_param_.find(param.impl().get());
    if (found != by_param_.end() && found->second.unit && found->second.unit->trained()) {
      shards.add(name, found->second.member->shard);
    }
  }
  return shards;
}

std::vector<Tensor> ZeroDataParallel::shards() const {
  std::vector<Tensor> list;
  for (const auto& [name, shard] : named_shards()) list.push_back(shard);
  return list;
}

std::vector<Tensor> ZeroDataParallel::shard(const std::vector<Tensor>& params) const {
  std::vector<Tensor> list;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto found = by_param_.find(params[i].impl().get());
    TARN_CHECK_AS(ValueError, found != by_param_.end(), "shard: ", parameter_text(i, params[i]),
                  " is not a parameter of the module");
    list.push_back(found->second.unit ? found->second.member->shard : params[i]);
  }
  return list;
}

std::vector<std::shared_ptr<ZeroDataParallel::Attachment>> ZeroDataParallel::attachments() const {
  std::vector<std::shared_ptr<Attachment>> alive;
  for (const auto& weak : attached_) {
    if (auto attached = weak.lock()) alive.push_back(std::move(attached));
  }
  return alive;
}

// The units that hold its shards, in an order that all ranks share.
std::vector<FlatUnit*> ZeroDataParallel::units_of(const optim::Optimizer& optimizer,
                                                  const char* caller) const {
  const std::vector<Tensor> params = optimizer.params();
  std::unordered_set<const FlatUnit*> held;
  for (size_t i = 0; i < params.size(); ++i) {
    const TensorImpl* impl = params[i].impl().get();
    if (const auto shard = by_shard_.find(impl); shard != by_shard_.end()) {
      if (shard->second.unit->trained()) held.insert(shard->second.unit);
      continue;
    }
    const auto whole = by_param_.find(impl);
    TARN_CHECK_AS(ValueError, whole != by_param_.end(), caller, ": the optimizer's ",
                  parameter_text(i, params[i]), " is not a shard of this module's parameters");
    TARN_CHECK_AS(ValueError, !whole->second.unit, caller, ": the optimizer's ",
                  parameter_text(i, params[i]), " is the whole of ", whole->second.member->name,
                  "; make the optimizer of zero.shards(), or of zero.shard(groups)");
  }
  for (const auto& other : attachments()) {
    if (other->optimizer == &optimizer) continue;
    for (const Tensor& theirs : other->optimizer->params()) {
      const bool both = std::any_of(params.begin(), params.end(), [&](const Tensor& mine) {
        return mine.is_same(theirs) && by_shard_.contains(mine.impl().get());
      });
      TARN_CHECK_AS(ValueError, !both, caller, ": another optimizer that is attached updates ",
                    both ? by_shard_.at(theirs.impl().get()).member->name : "", " already");
    }
  }
  std::vector<FlatUnit*> units;
  for (const auto& unit : units_) {
    if (held.contains(unit.get())) units.push_back(unit.get());
  }
  return units;
}

void ZeroDataParallel::attach(optim::Optimizer& optimizer) {
  for (const auto& other : attachments()) {
    TARN_CHECK_AS(ValueError, other->optimizer != &optimizer,
                  "attach: this optimizer is attached already");
  }
  const auto attached = std::make_shared<Attachment>(
      Attachment{this, &optimizer, optimizer.num_groups(), units_of(optimizer, "attach")});
  optimizer.register_step_pre_hook([attached](optim::Optimizer&) {
    if (attached->zero) attached->zero->before_step(*attached);
  });
  optimizer.register_step_post_hook([attached](optim::Optimizer&) {
    if (attached->zero) attached->zero->after_step(*attached);
  });
  optimizer.register_zero_grad_hook([attached](optim::Optimizer& of) {
    if (attached->zero) attached->zero->drop_whole_gradients(of);
  });
  attached_.push_back(attached);
  // It may have made a step already, of this rank's shards alone.
  if (reducer_->passes() == 0 || (gather_ && gather_->held())) return;
  for (FlatUnit* unit : attached->units) unit->take_written();
  after_step(*attached);
}

// What no_sync() added up, of the parameters whose shards the optimizer holds.
void ZeroDataParallel::drop_whole_gradients(const optim::Optimizer& optimizer) const {
  for (const Tensor& shard : optimizer.params()) {
    const auto found = by_shard_.find(shard.impl().get());
    if (found != by_shard_.end()) found->second.member->param.zero_grad();
  }
}

void ZeroDataParallel::before_step(Attachment& attached) {
  TARN_CHECK_AS(ValueError, !gather_ || !gather_->held(),
                "zero: a step inside zero.gathered() would leave the gathered parameters behind; "
                "end the guard first");
  for (const auto& [name, param] : frozen_) {
    TARN_CHECK_AS(ValueError, !param.requires_grad(), "zero: ", name,
                  " required no gradient when ZeroDataParallel was made, and does now: ranks do "
                  "not share its gradient; make ZeroDataParallel after unfreezing");
  }
  if (const size_t groups = attached.optimizer->num_groups(); groups != attached.groups) {
    attached.units = units_of(*attached.optimizer, "step");
    attached.groups = groups;
  }
  for (FlatUnit* unit : attached.units) unit->take_written();
}

// Stage 3 gathers what is used, when it is used.
void ZeroDataParallel::after_step(const Attachment& attached) {
  for (FlatUnit* unit : attached.units) {
    unit->shards_changed();
    if (!gather_) unit->start_gather();
  }
  for (FlatUnit* unit : attached.units) unit->wait_gathered();
}

// Norms of norms, in the order of ranks.
optim::NormAgreement ZeroDataParallel::norm_agreement() {
  return {.total =
              [&group = group_](double norm, double norm_type) {
                const Tensor all = empty({group.size()}, {.dtype = DType::kF64});
                group.all_gather(all, full({1}, norm, {.dtype = DType::kF64}))->wait();
                return optim::detail::total_norm(all.to_vector<double>(), norm_type);
              },
          .first =
              [&group = group_](const std::string& text) {
                const auto texts = all_gather_text(group, text);
                const auto said = std::find_if(texts.begin(), texts.end(),
                                               [](const auto& t) { return !t.empty(); });
                return said == texts.end() ? std::string() : *said;
              }};
}

double ZeroDataParallel::clip_grad_norm_(double max_norm, double norm_type,
                                         bool error_if_nonfinite) {
  const optim::NormAgreement ranks = norm_agreement();
  return optim::clip_grad_norm_(named_shards(), max_norm, norm_type, error_if_nonfinite, &ranks);
}

double ZeroDataParallel::grad_norm(double norm_type) {
  const optim::NormAgreement ranks = norm_agreement();
  return optim::grad_norm(shards(), norm_type, &ranks);
}

void ZeroDataParallel::agree(optim::GradScaler& scaler) {
  scaler.set_agreement(
      [&group = group_](bool found) { return true_on_any_rank(group, {found})[0] != 0; },
      norm_agreement());
}

void ZeroDataParallel::check_replicas() {
  const Gathered whole = gathered();
  check_same_values(group_, "zero", module_.named_parameters());
}

}  // namespace tarn::dist
