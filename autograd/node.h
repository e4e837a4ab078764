// node.h - one recorded operation: edges to where its inputs came from, and how to go back.
//
// The graph points from results to inputs. A node owns its edges, its saved tensors, and, while a
// backward runs, the gradient that has arrived for each of its outputs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

class Node;
struct AutogradMeta;

/// "The gradient of this input goes to output `output` of `node`." No node: nobody wants it.
struct Edge {
  Ref<Node> node;
  uint32_t output = 0;
};

/// The gradients a backward returns, one per input; undefined where none is wanted or none flows.
class Grads {
 public:
  Grads() = default;
  template <class... T, class = std::enable_if_t<(std::is_convertible_v<T&&, Tensor> && ...)>>
  Grads(T&&... grads) : count_(sizeof...(T)) {
    static_assert(sizeof...(T) <= kInline);
    int i = 0;
    ((inline_[i++] = std::forward<T>(grads)), ...);
  }
  Grads(std::vector<Tensor> grads)
      : more_(std::move(grads)), count_(static_cast<int>(more_.size())) {}
  int size() const { return count_; }
  Tensor& operator[](int i) { return more_.empty() ? inline_[i] : more_[i]; }

 private:
  static constexpr int kInline = 6;
  Tensor inline_[kInline];
  std::vector<Tensor> more_;
  int count_ = 0;
};

/// Which inputs' gradients are wanted: wants[i].
class Wants {
 public:
  explicit Wants(std::span<const Edge> edges) : edges_(edges) {}
  bool operator[](int i) const { return static_cast<bool>(edges_[i].node); }
  int size() const { return static_cast<int>(edges_.size()); }
  /// What other uses of input i have brought it so far in this pass, if a formula may add to it in
  /// place and then return no gradient of its own; else undefined. For gradients with few rows that
  /// are not 0, which are not worth a tensor of the input's size.
  Tensor sum_so_far(int i) const;
  /// The dtype in which a formula had better make the gradient of input i, which is of `dtype`: if
  /// the input is a cast (a parameter under autocast) and nobody looks at its gradient on the way,
  /// that of what was cast. A sum in f32 is then not rounded to halves to be widened again.
  DType dtype_of(int i, DType dtype) const;

 private:
  std::span<const Edge> edges_;
};

/// Where a tensor that was not kept comes from when backward needs it.
class SavedSource : public RefCounted<SavedSource> {
 public:
  virtual ~SavedSource() = default;
  /// The tensor without history. `op` names the operation that asks, for errors.
  virtual Tensor get(const char* op) = 0;

 private:
  friend class SavedTensor;
  Edge history_;  // of the tensor that was given away
};

/// While one is installed in a thread (SavedTensorHandlerGuard), it decides what becomes of the
/// tensors that operations keep for backward. Leaves that require grad are kept; it hears of them.
class SavedTensorHandler {
 public:
  virtual ~SavedTensorHandler() = default;
  /// What to keep instead of x; null to keep x itself.
  virtual Ref<SavedSource> pack(const Tensor& x) = 0;
  virtual void kept_leaf(const Tensor&) {}
  /// Whether pack may be called by threads that compute for this one (ThreadModes), several at
  /// once; else those keep their tensors.
  virtual bool serves_other_threads() const { return false; }
};

namespace detail {
inline thread_local SavedTensorHandler* saved_tensor_handler = nullptr;
/// Guards what passes in several threads do to one leaf.
std::mutex& leaf_mutex(const TensorImpl* leaf);
}  // namespace detail

class SavedTensorHandlerGuard {
 public:
  explicit SavedTensorHandlerGuard(SavedTensorHandler* handler)
      : previous_(detail::saved_tensor_handler) {
    detail::saved_tensor_handler = handler;
  }
  ~SavedTensorHandlerGuard() { detail::saved_tensor_handler = previous_; }
  SavedTensorHandlerGuard(const SavedTensorHandlerGuard&) = delete;
  SavedTensorHandlerGuard& operator=(const SavedTensorHandlerGuard&) = delete;

 private:
  SavedTensorHandler* previous_;
};

/// A tensor kept for backward. unpack() checks that nobody wrote to it since.
/// An output of the recording node is kept without its history (else node and tensor would own each
/// other) and gets it back when unpacked.
class SavedTensor {
 public:
  SavedTensor() = default;
  /// recording: the node that keeps x, or null.
  void pack(const Tensor& x, const Node* recording);
  Tensor unpack(const Node& node) const;
  /// The values, without history if they were given to a handler.
  Tensor values(const char* op) const;
  void release() {
    tensor_ = Tensor();
    source_ = nullptr;
  }

 private:
  Tensor tensor_;
  Ref<SavedSource> source_;  // in place of the tensor
  uint32_t version_ = 0;
  int32_t output_ = -1;  // index among the node's outputs, or -1 for an input
};

/// Throws the error of a saved tensor that was changed in place, unless x is at `version`.
void check_saved_version(const char* op, const Tensor& x, uint32_t version);

/// What only some nodes have: hooks, and where the operation was recorded (anomaly mode).
struct NodeExtras {
  struct Hook {
    int64_t id;
    uint32_t output;
    std::function<Tensor(const Tensor&)> call;
  };
  std::vector<Hook> hooks;
  std::string recorded_at;
};

/// What one backward pass knows about a node.
struct BackwardTask {
  int pending = 0;  // uses whose gradient has not arrived
  bool needed = true;
  Tensor first_grad;  // what has arrived for output 0, and for the others
  std::vector<Tensor> other_grads;
};

/// Base of all recorded operations.
/// Invariants: every node has a seq of its own, larger than that of every node its edges lead to
/// (leaf accumulators apart: they may be made after the first node that leads to them).
/// Thread safety: several backward passes, nested or in several threads, may walk a graph at the
/// same time, as long as none frees what another still needs (retain_graph).
class Node : public RefCounted<Node> {
 public:
  Node(const char* name, int outputs);
  virtual ~Node() = default;

  /// Gradients of the inputs from those of the outputs (undefined: zero). Called once per backward.
  virtual Grads backward(std::span<const Tensor> grads) = 0;
  /// Drops saved tensors; a later backward() of this node must say so.
  virtual void release_saved() {}
  virtual bool accumulates() const { return false; }
  /// Of a conversion between floating dtypes: what its gradients are converted to.
  std::optional<DType> converts_to() const { return converts_to_; }
  void set_converts_to(DType dtype) { converts_to_ = dtype; }

  const char* name() const { return name_; }
  uint64_t seq() const { return seq_; }
  int outputs() const { return outputs_; }
  std::span<Edge> edges() { return {edges_, static_cast<size_t>(num_edges_)}; }
  std::span<const Edge> edges() const { return {edges_, static_cast<size_t>(num_edges_)}; }
  NodeExtras& extras();
  NodeExtras* extras_if_any() const { return extras_.get(); }

  /// Frees a node and, without recursion, everything that only it kept alive.
  static void destroy(Node* node);

 protected:
  void set_edges(Edge* edges, int count) {
    edges_ = edges;
    num_edges_ = count;
  }
  bool released_ = false;

 private:
  friend class Engine;
  const uint64_t seq_;
  const char* name_;
  Edge* edges_ = nullptr;
  int num_edges_ = 0;
  int outputs_;
  std::optional<DType> converts_to_;
  std::unique_ptr<NodeExtras> extras_;

  // The pass that works in task_; passes that meet the node meanwhile bring tasks of their own.
  std::atomic<void*> run_{nullptr};
  BackwardTask task_;
};

/// Adds into the .grad of one leaf.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(TensorImpl* leaf);
  Grads backward(std::span<const Tensor> grads) override;
  bool accumulates() const override { return true; }

 private:
  friend struct AutogradMeta;
  TensorImpl* leaf_;  // cleared when the leaf dies first
};

/// Throws the error of using a graph whose saved tensors are gone.
[[noreturn]] void fail_released(const Node& node);

}  // namespace tarn
