// optimizer.cpp - collecting gradients into batches for the fused kernels.
#include "tarn/optim/optimizer.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::optim {
namespace {

/// True if the elements fill their memory without gaps, in whatever order of dimensions.
bool is_dense(const Tensor& x) {
  if (x.is_contiguous() || x.is_contiguous(MemoryFormat::kChannelsLast)) return true;
  std::vector<int> order(static_cast<size_t>(x.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return x.strides()[a] < x.strides()[b]; });
  int64_t expected = 1;
  for (int d : order) {
    if (x.sizes()[d] == 1) continue;
    if (x.strides()[d] != expected) return false;
    expected *= x.sizes()[d];
  }
  return true;
}

/// The gradient in the parameter's own layout, so that kernels walk both in memory order.
Tensor in_layout_of(const Tensor& param, Tensor grad) {
  TARN_CHECK_AS(ShapeError, grad.sizes() == param.sizes() && grad.device() == param.device(),
                "step: a gradient must have its parameter's sizes and device; got param=",
                param.describe(), ", grad=", grad.describe());
  TARN_CHECK_AS(DTypeError, grad.dtype() == param.dtype(),
                "step: a gradient must have its parameter's dtype; got param=", param.describe(),
                ", grad=", grad.describe());
  if (grad.strides() == param.strides()) return grad;
  if (grad.is_contiguous() && param.is_contiguous()) return grad;
  const Tensor copy = empty_strided(param.sizes(), param.strides(),
                                    {.dtype = grad.dtype(), .device = grad.device()});
  raw::copy_(copy, grad);
  return copy;
}

}  // namespace

void detail::check_option(bool ok, const char* optimizer, const char* name, const char* rule,
                          double value) {
  TARN_CHECK_AS(ValueError, ok, optimizer, ": ", name, " must be ", rule, "; got ", value);
}

void detail::check_not_negative(const char* optimizer,
                                std::initializer_list<std::pair<const char*, double>> options) {
  for (const auto& [name, value] : options) {
    check_option(value >= 0, optimizer, name, "at least 0", value);
  }
}

void Optimizer::add_group(const std::vector<Tensor>& params) {
  std::unordered_set<const TensorImpl*> known;
  for (const Tensor* p : all_) known.insert(p->impl().get());
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    const auto where = [&] {
      return tarn::detail::concat("parameter ", i, " of group ", groups_.size(),
                                  p.defined() ? "=" + p.describe() : "");
    };
    TARN_CHECK_AS(ValueError, p.defined(), "optimizer: ", where(), " is undefined");
    TARN_CHECK_AS(ValueError, p.is_leaf(), "optimizer: only leaves can be optimized; got ", where(),
                  ", a result of ", p.grad_fn_name(), "; pass the tensors it was made from");
    TARN_CHECK_AS(DTypeError, is_floating(p.dtype()),
                  "optimizer: parameters must be floating; got ", where());
    TARN_CHECK_AS(ShapeError, is_dense(p), "optimizer: parameters must be dense; got ", where(),
                  " with strides ", p.strides(), "; pass a contiguous leaf");
    TARN_CHECK_AS(ValueError, known.insert(p.impl().get()).second,
                  "optimizer: each parameter must be given once; got ", where(), " a second time");
  }
  Group group;
  group.params = params;
  groups_.push_back(std::move(group));
  all_.clear();
  for (Group& g : groups_) {
    g.first = all_.size();
    for (const Tensor& p : g.params) all_.push_back(&p);
  }
  states_.resize(all_.size());
  active_.assign(all_.size(), 0);
  rebuild_ = true;
}

void Optimizer::check_has_params(const char* name) const {
  TARN_CHECK_AS(ValueError, !all_.empty(), name,
                ": there must be parameters to optimize; got none; a module has those of its "
                "members that were declared with `this`");
}

std::vector<Tensor> Optimizer::params() const {
  std::vector<Tensor> list;
  for (const Tensor* p : all_) list.push_back(*p);
  return list;
}

double Optimizer::lr(size_t group) const {
  return const_cast<Optimizer*>(this)->lr_ref(group);
}
void Optimizer::set_lr(double lr) {
  for (size_t g = 0; g < num_groups(); ++g) set_lr(g, lr);
}
void Optimizer::set_lr(size_t group, double lr) {
  detail::check_option(lr >= 0, "set_lr", "lr", "at least 0", lr);
  lr_ref(group) = lr;
}

void Optimizer::fix_initial_lr() {
  for (size_t g = 0; g < num_groups(); ++g) groups_[g].initial_lr = initial_lr(g);
}

void Optimizer::zero_grad() {
  for (const Tensor* p : all_) Tensor(*p).zero_grad();
  run_hooks(When::kAfterZeroGrad);
}

int64_t Optimizer::add_hook(When when, Hook hook) {
  TARN_CHECK_AS(ValueError, static_cast<bool>(hook), "optimizer: a hook must be a function");
  hooks_.push_back({next_hook_, when, std::move(hook)});
  return next_hook_++;
}
int64_t Optimizer::register_step_pre_hook(Hook hook) {
  return add_hook(When::kBeforeStep, std::move(hook));
}
int64_t Optimizer::register_step_post_hook(Hook hook) {
  return add_hook(When::kAfterStep, std::move(hook));
}
int64_t Optimizer::register_zero_grad_hook(Hook hook) {
  return add_hook(When::kAfterZeroGrad, std::move(hook));
}
void Optimizer::remove_hook(int64_t id) {
  std::erase_if(hooks_, [id](const HookEntry& h) { return h.id == id; });
}

void Optimizer::run_hooks(When when) {
  if (hooks_.empty()) return;
  const std::vector<HookEntry> hooks = hooks_;  // a hook may remove itself
  for (const HookEntry& h : hooks) {
    if (h.when == when) h.call(*this);
  }
}

void Optimizer::step(double grad_scale) {
  run_hooks(When::kBeforeStep);
  step_batches(grad_scale);
  run_hooks(When::kAfterStep);
}

void Optimizer::step_batches(double grad_scale) {
  const bool rebuild = refresh_active() || rebuild_ || !batches_fit();
  rebuild_ = true;  // unless this step comes to its end
  try {
    if (rebuild) rebuild_batches();
    for (Batch& batch : batches_) collect_gradients(batch);
    for (const Batch& batch : batches_) update_masters(batch);
    bool fresh = false;
    for (Batch& batch : batches_) {
      ++batch.step;
      update(batch, grad_scale);
      batch.grads.clear();  // keeps the room, not the gradients
      finish(batch);
      fresh |= batch.fresh;
    }
    rebuild_ = fresh;  // next time they may join the batch of those that started earlier
  } catch (...) {
    drop_unfinished();
    throw;
  }
}

/// Counts the step of a batch and rounds its masters to the parameters.
void Optimizer::finish(const Batch& batch) {
  for (size_t i : batch.members) {
    states_[i].step = batch.step;
    states_[i].made = 0;
  }
  for (size_t i : batch.members) {
    ParamState& state = states_[i];
    if (state.master.defined()) {
      raw::copy_(param(i), state.master);
      state.written = param(i).version();
    } else {
      param(i).bump_version();
    }
  }
}

/// After a step that threw: state that it made and did not use is not there, so that a momentum
/// buffer, say, still begins with the first gradient.
void Optimizer::drop_unfinished() {
  batches_.clear();
  for (ParamState& state : states_) {
    for (int s = 0; s < kMaxSlots; ++s) {
      if (state.made & (1u << s)) state.slots[s] = {};
    }
    if (state.made & (1u << kMaxSlots)) state.master = {};
    state.made = 0;
  }
}

bool Optimizer::refresh_active() {
  bool changed = false;
  for (size_t i = 0; i < all_.size(); ++i) {
    const char has = param(i).grad().defined();
    changed |= has != active_[i];
    active_[i] = has;
  }
  return changed;
}

/// False once a parameter was converted, moved or gets other state: the kernels walk a batch with
/// one dtype, so each member counts.
bool Optimizer::batches_fit() const {
  for (const Batch& b : batches_) {
    for (size_t k = 0; k < b.members.size(); ++k) {
      const Tensor& p = param(b.members[k]);
      const DType dtype = is_half(p.dtype()) ? DType::kF32 : p.dtype();
      const auto fits = [&](const Tensor& x) {
        return x.dtype() == dtype && x.device() == p.device();
      };
      if (p.dtype() != param(b.members[0]).dtype() || !fits(b.params[k])) return false;
      for (int s = 0; s < kMaxSlots; ++s) {
        const std::vector<Tensor>& slot = b.slots[s];
        if (uses_slot(b.group, s) == slot.empty()) return false;
        if (!slot.empty() && !fits(slot[k])) return false;
      }
    }
  }
  return true;
}

void Optimizer::ensure_state(size_t group, const Tensor& param, ParamState& state) {
  const MemoryTagGuard tag(MemoryTag::kOptimizer);
  const DType dtype = is_half(param.dtype()) ? DType::kF32 : param.dtype();
  const auto like = [&] {
    return empty_strided(param.sizes(), param.strides(),
                         {.dtype = dtype, .device = param.device()});
  };
  const auto follow = [&](Tensor& x) {  // to where the parameter is now
    if (!x.defined() || (x.dtype() == dtype && x.device() == param.device())) return;
    const Tensor moved = like();
    raw::copy_(moved, x);
    x = moved;
  };
  follow(state.master);
  for (Tensor& slot : state.slots) follow(slot);
  if (is_half(param.dtype()) && !state.master.defined()) {
    state.master = like();
    state.made |= 1u << kMaxSlots;
    raw::copy_(state.master, param);
    state.written = param.version();
  }
  for (int s = 0; s < kMaxSlots; ++s) {
    if (!uses_slot(group, s) || state.slots[s].defined()) continue;
    state.slots[s] = like();
    state.made |= 1u << s;
    raw::fill_(state.slots[s], 0);
  }
}

void Optimizer::rebuild_batches() {
  batches_.clear();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t first_batch = batches_.size();
    for (size_t k = 0; k < groups_[g].params.size(); ++k) {
      const size_t i = groups_[g].first + k;
      if (!active_[i]) continue;
      ParamState& state = states_[i];
      ensure_state(g, param(i), state);
      const bool fresh = state.is_fresh();
      const Tensor& target = state.master.defined() ? state.master : param(i);
      const auto fits = [&](const Batch& b) {
        return b.fresh == fresh && (!counts_steps_ || b.step == state.step) &&
               b.device() == target.device() && b.params[0].dtype() == target.dtype() &&
               param(b.members[0]).dtype() == param(i).dtype();
      };
      auto batch = std::find_if(batches_.begin() + static_cast<std::ptrdiff_t>(first_batch),
                                batches_.end(), fits);
      if (batch == batches_.end()) {
        batch = batches_.emplace(batch);
        batch->group = g;
        batch->step = state.step;
        batch->fresh = fresh;
      }
      batch->params.push_back(target);
      batch->members.push_back(i);
      for (int s = 0; s < kMaxSlots; ++s) {
        if (uses_slot(g, s)) batch->slots[s].push_back(state.slots[s]);
      }
    }
  }
}

// What somebody wrote to a parameter since its master was rounded to it. Where it is what it was
// (averages swapped in and out again), the master keeps its bits.
void Optimizer::update_masters(const Batch& batch) {
  for (size_t i : batch.members) {
    ParamState& state = states_[i];
    if (!state.master.defined() || state.written == param(i).version()) continue;
    const Tensor same = raw::eq(raw::to(state.master, param(i).dtype()), param(i));
    raw::copy_(state.master,
               raw::where(same, state.master, raw::to(param(i), state.master.dtype())));
  }
}

void Optimizer::collect_gradients(Batch& batch) {
  for (size_t i : batch.members) batch.grads.push_back(in_layout_of(param(i), param(i).grad()));
}

DecaySplit split_by_decay(const TensorDict& named_params) {
  DecaySplit split;
  std::string names[2];
  int64_t counts[2] = {0, 0};
  std::unordered_set<const TensorImpl*> seen;
  for (const auto& [name, param] : named_params) {
    TARN_CHECK_AS(ValueError, param.defined(), "split_by_decay: parameter '", name,
                  "' is undefined");
    if (!seen.insert(param.impl().get()).second) continue;  // tied to an earlier one
    const bool decays = param.dim() >= 2;
    (decays ? split.decay : split.no_decay).push_back(param);
    names[decays] += (names[decays].empty() ? "" : ", ") + name;
    counts[decays] += param.numel();
  }
  split.report =
      tarn::detail::concat("weight decay: ", split.decay.size(), " tensors, ", counts[1],
                           " numbers: ", names[1], "\nno weight decay: ", split.no_decay.size(),
                           " tensors, ", counts[0], " numbers: ", names[0], "\n");
  return split;
}

}  // namespace tarn::optim
