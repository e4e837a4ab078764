// node.cpp - the life of recorded operations and of the tensors they keep.
#include "tarn/autograd/node.h"

#include <mutex>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/functions_elementwise.h"
#include "tarn/autograd/functions_shape.h"
#include "tarn/autograd/meta.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/plan.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/retag.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {
std::atomic<uint64_t> next_seq{1};
}  // namespace

Node::Node(const char* name, int outputs)
    : seq_(next_seq.fetch_add(1, std::memory_order_relaxed)), name_(name), outputs_(outputs) {
  if (__builtin_expect(anomaly_enabled(), 0)) extras().recorded_at = detail::current_module_path();
  if (detail::listening()) detail::tell_recorded(name_, seq_);
}

NodeExtras& Node::extras() {
  if (!extras_) extras_ = std::make_unique<NodeExtras>();
  return *extras_;
}

// A node may be the last owner of the next one, a hundred thousand deep: the stack of nodes to free
// is a list, not the call stack.
void Node::destroy(Node* node) {
  // A pointer, which is there as long as the thread: graphs may outlive what has a destructor.
  static thread_local std::vector<Node*>* pending = nullptr;
  if (pending) return pending->push_back(node);
  std::vector<Node*> nodes;
  pending = &nodes;
  for (Node* next = node; next;) {
    if (detail::listening()) detail::tell_forgotten(next->name_, next->seq_);
    delete next;
    next = nullptr;
    if (nodes.empty()) continue;
    next = nodes.back();
    nodes.pop_back();
  }
  pending = nullptr;
}

void SavedTensor::pack(const Tensor& x, const Node* recording) {
  if (!x.defined()) return;
  version_ = x.version();
  const AutogradMeta* meta = meta_of(x);
  if (recording && meta && meta->grad_fn.get() == recording) {
    output_ = static_cast<int32_t>(meta->output);
  }
  const bool leaf = meta && meta->requires_grad && !meta->grad_fn;
  if (__builtin_expect(detail::saved_tensor_handler != nullptr, 0)) {
    if (leaf) {
      detail::saved_tensor_handler->kept_leaf(x);
    } else {
      source_ = detail::saved_tensor_handler->pack(x);
    }
    if (source_) {
      if (output_ < 0) source_->history_ = gradient_edge(x);
      return;
    }
  }
  retag(*x.storage(), MemoryTag::kOther, leaf ? MemoryTag::kParameters : MemoryTag::kActivations);
  tensor_ = output_ >= 0 ? raw::alias(x) : x;
}

void check_saved_version(const char* op, const Tensor& x, uint32_t version) {
  TARN_CHECK_AS(AutogradError, x.version() == version, op,
                ": a tensor needed for its gradient was changed in place; got ", x.describe(),
                " at version ", x.version(), ", expected version ", version,
                "; use the out-of-place form, or clone() before the change");
}

Tensor SavedTensor::values(const char* op) const {
  if (source_) return source_->get(op);
  if (tensor_.defined()) check_saved_version(op, tensor_, version_);
  return tensor_;
}

Tensor SavedTensor::unpack(const Node& node) const {
  const Tensor kept = values(node.name());
  if (!kept.defined() || !grad_enabled()) return kept;
  Edge history = source_ ? source_->history_ : Edge();
  if (output_ >= 0) {
    history = {Ref<Node>(const_cast<Node*>(&node)), static_cast<uint32_t>(output_)};
  }
  if (!history.node) return kept;
  Tensor x = raw::alias(kept);
  set_history(x, std::move(history.node), history.output);
  return x;
}

std::mutex& detail::leaf_mutex(const TensorImpl* leaf) {
  constexpr size_t kLocks = 64;
  static std::mutex* const mutexes = new std::mutex[kLocks];
  return mutexes[reinterpret_cast<uintptr_t>(leaf) / 64 % kLocks];
}

AccumulateGrad::AccumulateGrad(TensorImpl* leaf) : Node("accumulate_grad", 1), leaf_(leaf) {}

namespace {

bool same_layout(const Tensor& a, const Tensor& b) {
  if (a.strides() == b.strides()) return true;
  return (a.is_contiguous() && b.is_contiguous()) ||
         (a.is_contiguous(MemoryFormat::kChannelsLast) &&
          b.is_contiguous(MemoryFormat::kChannelsLast));
}

// The gradient as the leaf will own it: the very tensor if nobody else holds it, else a copy in the
// leaf's layout.
Tensor own_gradient(const Tensor& leaf, const Tensor& grad) {
  const bool sole = grad.impl()->use_count() == 1 && grad.storage()->use_count() == 1;
  if (sole && same_layout(leaf, grad) && !overlaps_itself(grad)) return raw::alias(grad);
  const MemoryTagGuard tag(MemoryTag::kGradients);
  Tensor own = empty_like(leaf);
  raw::copy_(own, grad);
  return own;
}

// Passes in several threads may end at one leaf.
void add_plain(const Tensor& leaf, const Tensor& grad) {
  const std::lock_guard lock(detail::leaf_mutex(leaf.impl().get()));
  Tensor& sum = meta_of(leaf)->grad;
  if (sum.defined()) {
    raw::add_(sum, grad);
  } else {
    sum = own_gradient(leaf, grad);
    sum.impl()->view = false;
  }
}

// Recording may make an accumulator, which takes the mutex of another leaf: not under this one's.
void add_recorded(const Tensor& leaf, const Tensor& grad) {
  AutogradMeta& meta = *meta_of(leaf);
  const auto now = [&] {
    const std::lock_guard lock(detail::leaf_mutex(leaf.impl().get()));
    return meta.grad;
  };
  for (;;) {
    const Tensor before = now();
    // A copy, for the caller's tensor may be the gradient of more leaves.
    Tensor sum = before.defined() ? add(before, grad) : clone(grad);
    const std::lock_guard lock(detail::leaf_mutex(leaf.impl().get()));
    if (meta.grad.impl() != before.impl()) continue;  // another pass was here meanwhile
    meta.grad = std::move(sum);
    return;
  }
}

}  // namespace

Grads AccumulateGrad::backward(std::span<const Tensor> grads) {
  const Tensor& grad = grads[0];
  if (!leaf_ || !grad.defined()) return {};
  const Tensor leaf{Ref<TensorImpl>(leaf_)};
  AutogradMeta& meta = *meta_of(leaf);
  if (!meta.requires_grad) return {};  // frozen since it was used
  TARN_CHECK_AS(ShapeError, grad.sizes() == leaf.sizes() && grad.dtype() == leaf.dtype(),
                "backward: a gradient must have its tensor's sizes and dtype; got ",
                grad.describe(), " for ", leaf.describe());
  grad_enabled() ? add_recorded(leaf, grad) : add_plain(leaf, grad);
  const auto hooks = meta.post_hooks;  // a hook may remove itself
  for (const auto& [id, hook] : hooks) hook(leaf);
  return {};
}

}  // namespace tarn
