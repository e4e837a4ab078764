// unit_gather.cpp - parameters that are whole only while the module that uses them computes.
#include "tarn/dist/unit_gather.h"

#include <algorithm>
#include <utility>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/engine.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/recompute.h"

namespace tarn::dist {

UnitGather::UnitGather(std::vector<Unit> units, UnitGatherOptions options) : options_(options) {
  for (Unit& unit : units) {
    const bool frozen = std::any_of(unit.flats.begin(), unit.flats.end(),
                                    [](const FlatUnit* flat) { return !flat->trained(); });
    units_.push_back({.unit = std::move(unit), .frozen = frozen});
  }
  for (size_t i = 0; i < units_.size(); ++i) {
    State& u = units_[i];
    u.pre_hook = u.unit.module->register_forward_pre_hook([this, i](nn::Module&, const Tensor& x) {
      before_forward(i, x);
      return Tensor();
    });
    u.hook = u.unit.module->register_forward_hook(
        [this, i](nn::Module&, const Tensor&, const Tensor& y) {
          after_forward(i, y);
          return Tensor();
        });
  }
}

UnitGather::~UnitGather() {
  for (const State& u : units_) {
    u.unit.module->remove_hook(u.pre_hook);
    u.unit.module->remove_hook(u.hook);
  }
}

bool UnitGather::is_root(const FlatUnit& flat) const {
  const auto& flats = units_[0].unit.flats;
  return std::find(flats.begin(), flats.end(), &flat) != flats.end();
}

// Both are on their way before the first is waited for.
void UnitGather::gather(size_t index, Index next) {
  for (FlatUnit* flat : units_[index].unit.flats) flat->start_gather();
  if (options_.prefetch && next) {
    for (FlatUnit* flat : units_[*next].unit.flats) flat->start_gather();
  }
  for (FlatUnit* flat : units_[index].unit.flats) flat->wait_gathered();
}

void UnitGather::gather_all() {
  for (State& u : units_) {
    for (FlatUnit* flat : u.unit.flats) flat->start_gather();
  }
  for (size_t i = 0; i < units_.size(); ++i) gather(i, {});
}

void UnitGather::release(size_t index) {
  for (FlatUnit* flat : units_[index].unit.flats) release(*flat);
}

// Autocast would keep a copy of each parameter, whose memory is what goes here.
void UnitGather::release(FlatUnit& flat) {
  for (const FlatUnit::Member& m : flat.members()) detail::forget_cast(m.param);
  flat.release();
}

// Of a call in backward that computes again what was not kept, only the parameters are needed.
void UnitGather::before_forward(size_t index, const Tensor& x) {
  if (held()) return;
  if (is_recomputing()) return gather(index, {});
  if (index == 0) {
    last_forward_.reset();
    keeping_ = options_.all_at_once && grad_enabled();
    if (keeping_) gather_all();
  }
  if (last_forward_) units_[*last_forward_].next_forward = index;
  last_forward_ = index;
  gather(index, units_[index].next_forward);
  if (!units_[index].frozen || index == 0 || !grad_enabled() || !x.requires_grad()) return;
  if (x.is_leaf()) return;  // it may outlive this graph, and a hook with it
  x.register_hook([this, index, alive = std::weak_ptr<int>(alive_)](const Tensor&) {
    if (!alive.expired()) after_backward(index);
    return Tensor();
  });
}

void UnitGather::after_forward(size_t index, const Tensor& y) {
  if (is_recomputing()) return;
  const bool recorded = grad_enabled() && y.requires_grad() && !y.is_leaf();
  if (recorded) {
    y.register_hook([this, index, alive = std::weak_ptr<int>(alive_)](const Tensor&) {
      if (!alive.expired()) before_backward(index);
      return Tensor();
    });
  }
  if (index == 0) keeping_ = false;
  if (held() || keeping_ || (index == 0 && recorded)) return;
  release(index);
  if (index > 0) return;
  for (size_t i = 1; i < units_.size(); ++i) release(i);  // what was guessed wrong
}

void UnitGather::before_backward(size_t index) {
  if (held()) return;
  if (pass_.expired()) {
    const auto pass = std::make_shared<int>(0);
    on_backward_end([this, pass, alive = std::weak_ptr<int>(alive_)] {
      if (!alive.expired()) end_backward();
    });
    pass_ = pass;
    last_backward_.reset();
    for (State& u : units_) u.in_backward = 0;
    if (options_.all_at_once) gather_all();
  }
  if (last_backward_) units_[*last_backward_].next_backward = index;
  last_backward_ = index;
  ++units_[index].in_backward;
  gather(index, units_[index].next_backward);
}

// Its parameters without gradients are needed no longer; those with may still wait for them.
void UnitGather::after_backward(size_t index) {
  State& u = units_[index];
  if (held() || options_.all_at_once || u.in_backward == 0 || --u.in_backward > 0) return;
  for (FlatUnit* flat : u.unit.flats) {
    if (!flat->trained()) release(*flat);
  }
}

void UnitGather::gradients_done(FlatUnit& flat) {
  if (!held() && !options_.all_at_once && !is_root(flat)) release(flat);
}

void UnitGather::end_backward() {
  if (held()) return;
  for (size_t i = 0; i < units_.size(); ++i) release(i);
}

void UnitGather::hold() {
  if (held_++ == 0) gather_all();
}

void UnitGather::let_go() {
  if (--held_ > 0) return;
  for (State& u : units_) {
    for (FlatUnit* flat : u.unit.flats) flat->take_written();
  }
  for (size_t i = 0; i < units_.size(); ++i) release(i);
}

}  // namespace tarn::dist
