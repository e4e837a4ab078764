// record.h - how an operation puts itself on the tape: its gradient stands beside its forward.
//
//   Tensor mul(const Tensor& a, const Tensor& b) {
//     Tensor out = raw::mul(a, b);
//     return record("mul", out, {a, b}, save(a, b), [](const Saved& s, const Tensor& g, Wants w) {
//       return Grads(w[0] ? mul(g, s[1]) : Tensor(), w[1] ? mul(g, s[0]) : Tensor());
//     });
//   }
//
// The lambda must be trivially copyable: numbers and Shapes may be captured, tensors only through
// save(), where they are version-checked, counted and released. Formulas call public operations, so
// that a backward under create_graph is itself recorded. One allocation per recorded operation.
#pragma once

#include <array>
#include <span>
#include <type_traits>

#include "tarn/autograd/meta.h"
#include "tarn/core/free_list.h"
#include "tarn/core/op_scope.h"

namespace tarn {

/// The saved tensors as a backward formula sees them. s[i] checks the version.
class Saved {
 public:
  Saved(const SavedTensor* items, const Node& node) : items_(items), node_(node) {}
  Tensor operator[](int i) const { return items_[i].unpack(node_); }

 private:
  const SavedTensor* items_;
  const Node& node_;
};

template <int N>
using SaveList = std::array<const Tensor*, N>;

/// Names the tensors a backward formula needs; undefined ones stay undefined.
template <class... T>
SaveList<sizeof...(T)> save(const T&... tensors) {
  return {&tensors...};
}

/// An input as record() takes it.
class InputRef {
 public:
  InputRef(const Tensor& x) : tensor(&x) {}
  const Tensor* tensor;
};

namespace detail {
/// requires_grad(x), for an operation about to use x.
inline bool is_tracked(const Tensor& x) {
  if (!x.defined()) return false;
  if (x.impl()->autograd && meta_of(x)->requires_grad) return true;
  if (__builtin_expect(x.impl()->view_taken != 0, 0)) check_view_is_fresh(x);
  return false;
}
/// Throws where record() would: x is a view of what has been changed in place since.
inline void check_operand(const Tensor& x) {
  if (x.defined() && __builtin_expect(x.impl()->view_taken != 0, 0)) check_view_is_fresh(x);
}
}  // namespace detail

/// True if something computed from these inputs now must be recorded.
inline bool any_requires_grad(std::span<const InputRef> inputs) {
  if (!detail::grad_mode.enabled) return false;
  for (const InputRef& input : inputs) {
    if (detail::is_tracked(*input.tensor)) return true;
  }
  return false;
}
inline bool any_requires_grad(std::span<const Tensor> inputs) {
  if (!detail::grad_mode.enabled) return false;
  for (const Tensor& input : inputs) {
    if (detail::is_tracked(input)) return true;
  }
  return false;
}

/// The same for tensors by name; lets an operation skip what only the tape needs.
template <class... T>
bool will_record(const T&... inputs) {
  return detail::grad_mode.enabled && (detail::is_tracked(inputs) || ...);
}

namespace detail {

template <class F>
inline constexpr bool takes_all_grads =
    std::is_invocable_v<F, const Saved&, std::span<const Tensor>, Wants> &&
    !std::is_invocable_v<F, const Saved&, const Tensor&, Wants>;

template <class F, int kInputs, int kSaved>
class RecordedNode final : public Node {
 public:
  RecordedNode(const char* name, int outputs, const InputRef* inputs, F fn)
      : Node(name, outputs), fn_(fn) {
    for (int i = 0; i < kInputs; ++i) edges_store_[i] = gradient_edge(*inputs[i].tensor);
    set_edges(edges_store_.data(), kInputs);
  }
  void pack(const SaveList<kSaved>& saved) {
    for (int i = 0; i < kSaved; ++i) saved_[i].pack(*saved[i], this);
  }
  Grads backward(std::span<const Tensor> grads) override {
    if (released_) fail_released(*this);
    const Saved saved(saved_.data(), *this);
    if constexpr (takes_all_grads<F>) {
      return fn_(saved, grads, Wants(edges()));
    } else {
      return fn_(saved, grads[0], Wants(edges()));
    }
  }
  void release_saved() override {
    if constexpr (kSaved > 0) {
      for (SavedTensor& s : saved_) s.release();
      released_ = true;
    }
  }
  static void* operator new(size_t) { return FreeList<sizeof(RecordedNode)>::take(); }
  static void operator delete(void* p) noexcept { FreeList<sizeof(RecordedNode)>::give(p); }

 private:
  std::array<Edge, kInputs> edges_store_;
  std::array<SavedTensor, kSaved> saved_;
  F fn_;
};

/// Throws if x is undefined or an in-place write to it cannot be recorded: a leaf, or a view.
void check_inplace(const char* op, const Tensor& x, bool recorded);

}  // namespace detail

/// Records `out = name(inputs)`. fn(saved, grad, wants) returns one gradient per input. If out is
/// one of the inputs (an in-place operation), its history is replaced; see begin_inplace.
template <size_t kInputs, size_t kSaved, class F>
Tensor record(const char* name, Tensor out, const InputRef (&inputs)[kInputs],
              const std::array<const Tensor*, kSaved>& saved, F fn) {
  static_assert(std::is_trivially_copyable_v<F>, "capture no tensors: pass them through save()");
  if (!any_requires_grad(std::span<const InputRef>(inputs))) return out;
  using N = detail::RecordedNode<F, static_cast<int>(kInputs), static_cast<int>(kSaved)>;
  N* node = new N(name, 1, inputs, fn);
  Ref<Node> ref(node);
  for (const InputRef& input : inputs) {
    if (input.tensor->impl() == out.impl()) out.storage()->bump_recorded_writes();
  }
  set_history(out, std::move(ref), 0);
  node->pack(saved);
  return out;
}

/// Records an operation with several differentiable outputs: fn(saved, span of grads, wants).
template <size_t kInputs, size_t kSaved, class F>
void record_outputs(const char* name, std::span<const Tensor> outs,
                    const InputRef (&inputs)[kInputs],
                    const std::array<const Tensor*, kSaved>& saved, F fn) {
  static_assert(std::is_trivially_copyable_v<F>, "capture no tensors: pass them through save()");
  if (!any_requires_grad(std::span<const InputRef>(inputs))) return;
  using N = detail::RecordedNode<F, static_cast<int>(kInputs), static_cast<int>(kSaved)>;
  N* node = new N(name, static_cast<int>(outs.size()), inputs, fn);
  Ref<Node> ref(node);
  for (size_t i = 0; i < outs.size(); ++i) set_history(outs[i], ref, static_cast<uint32_t>(i));
  node->pack(saved);
}

namespace detail {
/// Lets later recorded in-place writes to x, of which `out` is a view, be noticed; but what was cut
/// off on purpose (detach) stays so, as its views do.
inline void mark_view(const Tensor& out, const Tensor& x) {
  if (x.impl()->view && x.impl()->view_taken == 0) return;
  out.impl()->view_taken = out.storage()->recorded_writes() + 1;
}
}  // namespace detail

/// As record, for views: the result shares x's storage, and later recorded in-place writes to it
/// are noticed.
template <class F>
Tensor record_view(const char* name, Tensor out, const Tensor& x, F fn) {
  out = record(name, std::move(out), {x}, save(), fn);
  detail::mark_view(out, x);
  return out;
}

/// Call first in every recorded in-place operation: refuses what would give silently wrong
/// gradients (a leaf that requires grad, a view when the write is recorded), and undefined tensors.
/// A view that is alone with its memory is one no more.
template <class... T>
void begin_inplace(const char* op, const Tensor& x, const T&... inputs) {
  const bool recorded = will_record(x, inputs...);
  if (recorded) (detail::check_operand(inputs), ...);  // not after the write
  detail::check_inplace(op, x, recorded);
}

/// What an in-place operation on x must record and save for its operand `other`: `other` itself, or
/// a copy if the write is going to change it as well (x.mul_(x), x.div_(x[0])). Call it before
/// begin_inplace.
Tensor before_write(const Tensor& x, const Tensor& other);

}  // namespace tarn
