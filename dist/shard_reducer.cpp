// shard_reducer.cpp - gradients averaged during backward, each rank's shards of them kept.
#include "tarn/dist/shard_reducer.h"

#include <utility>

#include "tarn/autograd/engine.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/buckets.h"

namespace tarn::dist {
namespace {

// Units whose whole gradients may wait for their message at a time, where their memory is to be
// given back soon.
constexpr size_t kMostOnWay = 2;

}  // namespace

ShardReducer::ShardReducer(ProcessGroup& group, std::vector<FlatUnit*> units,
                           ShardReducerOptions options)
    : group_(group), options_(options) {
  for (FlatUnit* flat : units) {
    Unit unit{.flat = flat, .params = {}, .whole = {}, .piece = {}, .work = {}};
    for (const FlatUnit::Member& m : flat->members()) {
      unit.params.push_back(params_.size());
      params_.push_back({.member = &m, .unit = units_.size()});
    }
    units_.push_back(std::move(unit));
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i].hook = params_[i].member->param.register_post_accumulate_grad_hook(
        [this, i](const Tensor&) { arrived(i); });
  }
}

ShardReducer::~ShardReducer() {
  for (const Param& p : params_) p.member->param.remove_hook(p.hook);
}

void ShardReducer::reset() {
  next_ = 0;
  on_way_.clear();
  for (Param& p : params_) p.ready = p.used = false;
  for (Unit& u : units_) {
    u.pending = u.params.size();
    if (u.work) u.work->wait();  // of a backward that threw: its message still uses the buffers
    u.work.reset();
    u.piece = Tensor();
    if (!options_.keep_buffers) u.whole = Tensor();
  }
}

void ShardReducer::begin() {
  const auto pass = std::make_shared<int>(0);
  on_backward_end([this, pass] { end(); });
  pass_ = pass;
  phase_ = sync_ ? Phase::kReducing : Phase::kLocal;
  reset();
  if (phase_ == Phase::kReducing && before_reduce_) before_reduce_();
}

void ShardReducer::arrived(size_t index) {
  if (phase_ == Phase::kIdle || pass_.expired()) begin();
  Param& p = params_[index];
  Unit& unit = units_[p.unit];
  TARN_CHECK_AS(ValueError, unit.flat->holds(*p.member), "zero: ", p.member->name,
                " was converted or moved after ZeroDataParallel was made; do that before");
  if (std::exchange(p.ready, true)) {
    if (phase_ == Phase::kReducing) take_more(p);
    return;
  }
  if (phase_ == Phase::kReducing) take_gradient(p);
  if (--unit.pending > 0) return;
  if (unit_done_) unit_done_(*unit.flat);
  if (phase_ == Phase::kReducing && options_.overlap) launch_ready();
}

// What this rank has of a gradient, if only zeros, moves to the buffer.
void ShardReducer::take_gradient(Param& p) {
  Unit& unit = units_[p.unit];
  if (!unit.whole.defined()) {
    const MemoryTagGuard tag(MemoryTag::kGradients);
    // Nobody looks at what is between the parameters.
    unit.whole =
        empty({unit.flat->numel()}, {.dtype = unit.flat->dtype(), .device = unit.flat->device()});
  }
  const Tensor place = FlatUnit::part_of(unit.whole, *p.member);
  const Tensor grad = p.member->param.grad();
  p.used = grad.defined();
  if (p.used) {
    raw::copy_(place, grad);
  } else {
    raw::fill_(place, 0);
  }
  p.member->param.zero_grad();
}

// Of a backward that a hook ran inside this one: gradients come once for each of them.
void ShardReducer::take_more(Param& p) {
  if (p.unit < next_) refuse(second_text("zero", p.member->name, group_.rank()));
  const Tensor grad = p.member->param.grad();
  if (!grad.defined()) return;
  p.used = true;
  raw::add_(FlatUnit::part_of(units_[p.unit].whole, *p.member), grad);
  p.member->param.zero_grad();
}

void ShardReducer::launch_ready() {
  for (; next_ < units_.size() && units_[next_].pending == 0; ++next_) launch(units_[next_]);
}

void ShardReducer::launch(Unit& unit) {
  const MemoryTagGuard tag(MemoryTag::kGradients);
  unit.piece =
      empty({unit.flat->chunk()}, {.dtype = unit.flat->dtype(), .device = unit.flat->device()});
  unit.work = group_.reduce_scatter(unit.piece, unit.whole, ReduceOp::kAvg);
  on_way_.push_back(static_cast<size_t>(&unit - units_.data()));
  if (options_.keep_buffers) return;
  while (on_way_.size() > kMostOnWay) {
    finish(units_[on_way_.front()]);
    on_way_.pop_front();
  }
}

void ShardReducer::finish(Unit& unit) {
  std::exchange(unit.work, nullptr)->wait();
  if (!options_.keep_buffers) unit.whole = Tensor();
}

void ShardReducer::refuse(const std::string& text) {
  group_.abort(text);  // the others wait for units that will not come
  throw DistError(text);
}

// Parameters without a gradient in this backward: an error that names them, or they count as zeros,
// or as what earlier backwards added on this rank.
void ShardReducer::handle_missing() {
  std::vector<std::string> names;
  for (Param& p : params_) {
    if (p.ready) continue;
    names.push_back(p.member->name);
    if (!options_.find_unused_parameters) continue;
    take_gradient(p);
    --units_[p.unit].pending;
  }
  if (names.empty() || options_.find_unused_parameters) return;
  refuse(missing_text("zero", names, params_.size(), group_.rank()) +
         "; leave them out of the model, freeze them, or set find_unused_parameters");
}

void ShardReducer::end() {
  if (std::exchange(phase_, Phase::kIdle) != Phase::kReducing) return;
  handle_missing();
  launch_ready();
  for (; !on_way_.empty(); on_way_.pop_front()) finish(units_[on_way_.front()]);
  if (options_.find_unused_parameters) {
    std::vector<char> used;
    for (const Param& p : params_) used.push_back(p.used);
    used = true_on_any_rank(group_, used);
    for (size_t i = 0; i < params_.size(); ++i) params_[i].used = used[i];
  }
  set_shards();
  ++passes_;
}

// What nobody used stays absent, so that optimizers leave it alone.
void ShardReducer::set_shards() {
  for (const Param& p : params_) {
    if (!p.used) continue;
    const Unit& unit = units_[p.unit];
    const Tensor mine = unit.flat->shard_of(unit.piece, *p.member);
    const Tensor before = p.member->shard.grad();
    if (before.defined()) {
      raw::add_(before, mine);
    } else {
      p.member->shard.set_grad(mine);
    }
  }
  for (Unit& unit : units_) unit.piece = Tensor();
}

}  // namespace tarn::dist
