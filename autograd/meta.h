// meta.h - what autograd hangs on a tensor: its place in the graph and its gradient.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/node.h"

namespace tarn {

struct AutogradMeta final : AutogradSlot {
  bool requires_grad = false;
  uint32_t output = 0;                              // of grad_fn
  Ref<Node> grad_fn;                                // none: a leaf
  Ref<AccumulateGrad> accumulator;                  // made once, under the leaf's mutex
  std::atomic<AccumulateGrad*> published{nullptr};  // the same, for threads that only look
  Tensor grad;
  std::shared_ptr<Tensor> retained;  // retain_grad of a non-leaf
  std::vector<std::pair<int64_t, std::function<void(const Tensor&)>>> post_hooks;
  // Where hooks were registered, to be removed: the tensor may have another history since.
  std::unique_ptr<std::vector<std::pair<int64_t, Ref<Node>>>> hooked;

  ~AutogradMeta() override;
  static void* operator new(size_t size);
  static void operator delete(void* p) noexcept;
};

/// The id of retain_grad's hook. It stands last: what is retained is what the other hooks left.
inline constexpr int64_t kRetainHook = 0;

inline AutogradMeta* meta_of(const Tensor& x) {
  return static_cast<AutogradMeta*>(x.impl()->autograd);
}
/// Creates the slot if there is none.
AutogradMeta& ensure_meta(const Tensor& x);
inline bool requires_grad(const Tensor& x) {
  return x.defined() && x.impl()->autograd && meta_of(x)->requires_grad;
}
/// Throws if x is a view that was taken before a recorded in-place write to its base: its history
/// (also if it is none) is not that of its values.
void check_view_is_fresh(const Tensor& x);
/// Where the gradient of x goes; an empty edge if x needs none.
Edge gradient_edge(const Tensor& x);
/// Makes x output number `output` of node.
void set_history(const Tensor& x, Ref<Node> node, uint32_t output);

}  // namespace tarn
