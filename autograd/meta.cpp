// meta.cpp - a tensor's place in the graph.
#include "tarn/autograd/meta.h"

#include <algorithm>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/record.h"
#include "tarn/core/free_list.h"

namespace tarn {

void* AutogradMeta::operator new(size_t) {
  return detail::FreeList<sizeof(AutogradMeta)>::take();
}
void AutogradMeta::operator delete(void* p) noexcept {
  detail::FreeList<sizeof(AutogradMeta)>::give(p);
}

AutogradMeta::~AutogradMeta() {
  if (accumulator) accumulator->leaf_ = nullptr;
}

AutogradMeta& ensure_meta(const Tensor& x) {
  TensorImpl& impl = *x.impl();
  if (!impl.autograd) impl.autograd = new AutogradMeta();
  return static_cast<AutogradMeta&>(*impl.autograd);
}

void check_view_is_fresh(const Tensor& x) {
  const uint32_t taken = x.impl()->view_taken;
  if (taken == 0 || taken == x.storage()->recorded_writes() + 1) return;
  const AutogradMeta* meta = meta_of(x);
  detail::fail<AutogradError>(
      meta && meta->grad_fn ? meta->grad_fn->name() : "view",
      ": this view was taken before its base was changed in place, so its gradient would be wrong; "
      "take the view again after the change");
}

namespace {

// Several threads may use one leaf for the first time.
AccumulateGrad* make_accumulator(const Tensor& x, AutogradMeta& meta) {
  const std::lock_guard lock(detail::leaf_mutex(x.impl().get()));
  if (!meta.accumulator) {
    meta.accumulator = Ref<AccumulateGrad>(new AccumulateGrad(x.impl().get()));
    meta.published.store(meta.accumulator.get(), std::memory_order_release);
  }
  return meta.accumulator.get();
}

}  // namespace

Edge gradient_edge(const Tensor& x) {
  if (!requires_grad(x)) {
    if (x.defined() && x.impl()->view_taken != 0) check_view_is_fresh(x);
    return {};
  }
  AutogradMeta& meta = *meta_of(x);
  if (meta.grad_fn) {
    check_view_is_fresh(x);
    return {meta.grad_fn, meta.output};
  }
  AccumulateGrad* there = meta.published.load(std::memory_order_acquire);
  if (__builtin_expect(!there, 0)) there = make_accumulator(x, meta);
  return {Ref<Node>(there), 0};
}

namespace {

// An operation in place took the tensor over: what it retains is its new value's gradient.
void move_retain_hook(Node& from, uint32_t output, Node& to, uint32_t to_output) {
  auto& hooks = from.extras().hooks;
  const auto hook = std::find_if(hooks.begin(), hooks.end(), [&](const auto& h) {
    return h.id == kRetainHook && h.output == output;
  });
  if (hook == hooks.end()) return;
  to.extras().hooks.push_back({kRetainHook, to_output, std::move(hook->call)});
  hooks.erase(hook);
}

}  // namespace

void set_history(const Tensor& x, Ref<Node> node, uint32_t output) {
  if (__builtin_expect(detail::anomaly_forward, 0)) check_anomaly_forward(*node, x);
  AutogradMeta& meta = ensure_meta(x);
  if (__builtin_expect(meta.retained != nullptr && meta.grad_fn, 0)) {
    move_retain_hook(*meta.grad_fn, meta.output, *node, output);
  }
  meta.requires_grad = true;
  meta.grad_fn = std::move(node);
  meta.output = output;
}

void detail::check_inplace(const char* op, const Tensor& x, bool recorded) {
  if (__builtin_expect(!x.defined(), 0)) fail_undefined(op);
  if (!recorded) return;
  TARN_CHECK_AS(AutogradError, !(requires_grad(x) && !meta_of(x)->grad_fn), op,
                ": a leaf that requires grad cannot be changed in place while recording; got ",
                x.describe(), "; wrap the change in a NoGradGuard");
  if (x.impl()->view && x.storage()->use_count() == 1) {
    x.impl()->view = false;
    x.impl()->view_taken = 0;
  }
  TARN_CHECK_AS(AutogradError, !x.impl()->view, op,
                ": in-place on a view is not recorded, its base would keep a stale history; got ",
                x.describe(), "; use the out-of-place form (or index_put / cat on the base)");
}

}  // namespace tarn
