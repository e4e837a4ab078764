// autocast.cpp - the state of autocast, the casts, and the cache of cast parameters.
#include "tarn/autograd/autocast.h"

#include <unordered_map>

#include "tarn/autograd/functions_shape.h"
#include "tarn/autograd/record.h"

namespace tarn {
namespace {

/// A parameter and its low copy. The parameter is held, so that its address stays its own, and so
/// is the memory that was cast: Module::to puts other memory into the same tensor.
struct CachedCast {
  Tensor source, low;
  uint32_t version = 0;  // goes up as well when the tensor gets other memory
};

struct ThreadState {
  AutocastState autocast;
  int guards = 0;
  std::unordered_map<const TensorImpl*, CachedCast> cache;
};
thread_local ThreadState thread_state;

void set_state(const AutocastState& state) {
  thread_state.autocast = state;
  detail::autocast_on = false;
  for (const bool on : state.on) detail::autocast_on |= on;
}

bool is_parameter(const Tensor& x) {
  const AutogradMeta* meta = meta_of(x);
  return meta && meta->requires_grad && !meta->grad_fn;
}

Tensor cast_parameter(const Tensor& x, DType dtype) {
  CachedCast& entry = thread_state.cache[x.impl().get()];
  // A copy made under no_grad has no history and must not serve where one is wanted.
  const bool fits = entry.low.defined() && entry.low.dtype() == dtype &&
                    entry.version == x.version() && (!grad_enabled() || requires_grad(entry.low));
  if (!fits) entry = {x, to(x, dtype), x.version()};
  return entry.low;
}

Tensor cast_one(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return is_half(dtype) && is_parameter(x) ? cast_parameter(x, dtype) : to(x, dtype);
}

/// Whether autocast may touch x.
bool is_eligible(const Tensor& x) {
  return x.defined() && is_floating(x.dtype()) && x.dtype() != DType::kF64 &&
         thread_state.autocast.on[static_cast<int>(x.device().type)];
}

/// The dtype x goes to.
DType target_of(CastPolicy policy, const Tensor& x, DType widest) {
  switch (policy) {
    case CastPolicy::kLow:
      return thread_state.autocast.low[static_cast<int>(x.device().type)];
    case CastPolicy::kF32:
      return DType::kF32;
    case CastPolicy::kPromote:
      break;
  }
  return widest;
}

}  // namespace

AutocastState autocast_state() {
  return detail::autocast_on ? thread_state.autocast : AutocastState{};
}

bool autocast_enabled(DeviceType device) {
  return detail::autocast_on && thread_state.autocast.on[static_cast<int>(device)];
}

AutocastGuard::AutocastGuard(DeviceType device, DType low, bool enabled)
    : previous_(thread_state.autocast), was_on_(detail::autocast_on) {
  TARN_CHECK_AS(DTypeError, is_half(low), "autocast: the low dtype must be bf16 or f16; got ", low);
  AutocastState state = autocast_state();
  state.on[static_cast<int>(device)] = enabled;
  state.low[static_cast<int>(device)] = low;
  set_state(state);
  ++thread_state.guards;
}

AutocastGuard::AutocastGuard(const AutocastState& state)
    : previous_(thread_state.autocast), was_on_(detail::autocast_on) {
  set_state(state);
  ++thread_state.guards;
}

AutocastGuard::~AutocastGuard() {
  thread_state.autocast = previous_;
  detail::autocast_on = was_on_;
  if (--thread_state.guards == 0) thread_state.cache.clear();
}

void detail::forget_cast(const Tensor& parameter) {
  if (!thread_state.cache.empty()) thread_state.cache.erase(parameter.impl().get());
}

bool detail::cast_inputs(CastPolicy policy, const Tensor* const* inputs, Tensor* out,
                         size_t count) {
  DType widest = DType::kBool;
  bool any = false;
  for (size_t i = 0; i < count; ++i) {
    if (inputs[i]->defined() && is_floating(inputs[i]->dtype())) {
      widest = any ? promote_types(widest, inputs[i]->dtype()) : inputs[i]->dtype();
      any = true;
    }
  }
  bool changes = false;
  for (size_t i = 0; i < count; ++i) {
    const Tensor& x = *inputs[i];
    changes |= is_eligible(x) && target_of(policy, x, widest) != x.dtype();
  }
  if (!changes) return false;
  for (size_t i = 0; i < count; ++i) {
    const Tensor& x = *inputs[i];
    out[i] = is_eligible(x) ? cast_one(x, target_of(policy, x, widest)) : x;
  }
  return true;
}

}  // namespace tarn
