// engine.cpp - walks the tape backwards.
//
// First every node that the roots reach is claimed and its incoming edges are counted. A node runs
// when the gradients of all its uses have arrived; of the ready ones the youngest goes first, which
// keeps the order of summation, and so every bit, the same from run to run. Leaves go before
// everything else, so that gradient hooks fire, and communication starts, as early as possible;
// among themselves the youngest (the one that was used last for the first time) goes first as well.
#include "tarn/autograd/engine.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions_elementwise.h"
#include "tarn/autograd/functions_shape.h"
#include "tarn/autograd/meta.h"
#include "tarn/core/factory.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/plan.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {

class Engine;

namespace {

// The backward that this thread runs, and what waits for its end.
struct Running {
  int depth = 0;  // backwards within hooks and recomputation are nested
  Engine* innermost = nullptr;
  std::vector<std::function<void()>> at_end;
};
thread_local Running running;

// What the user called, in the words of its errors.
struct Caller {
  const char* name;
  const char* seeds;   // its argument
  const char* retain;  // how it is told to keep the graph
};
constexpr Caller kBackward = {"backward", "a gradient", "backward(..., retain_graph=true)"};
constexpr Caller kGrad = {"grad", "grad_outputs", "grad(..., {.retain_graph = true})"};

struct RunningGuard {
  explicit RunningGuard(Engine* engine) {
    constexpr int kMost = 64;
    TARN_CHECK_AS(AutogradError, running.depth < kMost, "backward: ", kMost,
                  " passes run inside one another; does a hook call backward on its own tensor?");
    ++running.depth;
    outer = std::exchange(running.innermost, engine);
  }
  ~RunningGuard() {
    running.innermost = outer;
    if (--running.depth == 0) running.at_end.clear();
  }
  void end() const {
    if (running.depth > 1) return;
    for (size_t i = 0; i < running.at_end.size(); ++i) {
      const auto callback = std::move(running.at_end[i]);  // it may ask for more
      callback();
    }
  }
  Engine* outer;
};

}  // namespace

void on_backward_end(std::function<void()> callback) {
  TARN_CHECK_AS(AutogradError, running.depth > 0,
                "on_backward_end: this thread runs no backward; call it from a hook");
  TARN_CHECK_AS(ValueError, static_cast<bool>(callback), "on_backward_end: a function is needed");
  running.at_end.push_back(std::move(callback));
}

class Engine {
 public:
  Engine(const Caller& caller, BackwardOptions options)
      : caller_(caller), options_(options), mode_(options.create_graph) {}
  ~Engine() { unclaim(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void add_root(const Tensor& root, Tensor grad);
  /// Asks for the gradient at an edge instead of accumulating there.
  void capture(const Edge& edge, Tensor* into);
  void run();
  Tensor sum_so_far(const Edge& edge);
  /// Whether a gradient reaches the node behind the edge unseen.
  bool is_unseen(const Edge& edge) const;
  const Caller& caller() const { return caller_; }

 private:
  void claim_all();
  void prune();
  void unclaim() noexcept;
  BackwardTask& task(Node* node);
  bool has(Node* node) const;
  BackwardTask& claim(Node* node);
  void ready(Node* node);
  Node* pop();
  void run_node(Node* node);
  void apply_hooks(Node* node, std::span<Tensor> grads);
  bool may_add_to(const Tensor& sum) const;
  void deliver(const Edge& edge, Tensor grad);

  const Caller& caller_;
  BackwardOptions options_;
  GradModeGuard mode_;
  AutocastOffGuard autocast_;  // formulas use the dtypes of the forward
  std::vector<Edge> root_edges_;
  std::vector<Tensor> root_grads_;
  std::vector<Ref<Node>> claimed_;
  std::unordered_map<Node*, BackwardTask> guests_;  // of nodes that another pass works in
  std::vector<Node*> heap_;
  std::multimap<std::pair<Node*, uint32_t>, Tensor*> captures_;
};

void Engine::add_root(const Tensor& root, Tensor grad) {
  Edge edge = gradient_edge(root);
  TARN_CHECK_AS(AutogradError, static_cast<bool>(edge.node), caller_.name,
                ": the tensor does not require grad and has no history; got ", root.describe());
  if (!grad.defined()) {
    TARN_CHECK_AS(ShapeError, root.numel() == 1, caller_.name, ": ", caller_.seeds,
                  " must be given unless the tensor has one element; got ", root.describe(),
                  "; reduce it with sum() or mean() first");
    grad = ones_like(root);
  }
  TARN_CHECK_AS(ShapeError, grad.sizes() == root.sizes(), caller_.name, ": ", caller_.seeds,
                " must have the tensor's sizes; got gradient=", grad.describe(), " for ",
                root.describe());
  TARN_CHECK_AS(DeviceError, grad.device() == root.device(), caller_.name, ": ", caller_.seeds,
                " must be on the tensor's device; got gradient=", grad.describe(), " for ",
                root.describe());
  if (grad.dtype() != root.dtype()) grad = to(grad, root.dtype());
  root_edges_.push_back(std::move(edge));
  root_grads_.push_back(std::move(grad));
}

void Engine::capture(const Edge& edge, Tensor* into) {
  captures_.emplace(std::pair(edge.node.get(), edge.output), into);
}

// The first pass that meets a node works inside it; another one that comes meanwhile (checkpointing
// runs a backward inside a backward, DataParallel several in threads) keeps its own notes.
BackwardTask& Engine::task(Node* node) {
  if (__builtin_expect(node->run_.load(std::memory_order_relaxed) == this, 1)) return node->task_;
  return guests_.at(node);
}

bool Engine::has(Node* node) const {
  if (__builtin_expect(node->run_.load(std::memory_order_relaxed) == this, 1)) return true;
  return !guests_.empty() && guests_.contains(node);
}

BackwardTask& Engine::claim(Node* node) {
  void* expected = nullptr;
  const bool first = node->run_.compare_exchange_strong(expected, this);
  BackwardTask& task = first ? node->task_ : guests_[node];
  task.pending = 0;
  task.needed = captures_.empty();
  claimed_.emplace_back(node);
  return task;
}

void Engine::claim_all() {
  for (const Edge& root : root_edges_) {
    if (!has(root.node.get())) claim(root.node.get());
  }
  for (size_t i = 0; i < claimed_.size(); ++i) {
    Node* node = claimed_[i].get();
    for (const Edge& edge : node->edges()) {
      if (!edge.node) continue;
      BackwardTask& next = has(edge.node.get()) ? task(edge.node.get()) : claim(edge.node.get());
      ++next.pending;
    }
  }
}

// With captures, only nodes on a path to one of them run. Inputs are older than results, so one
// pass from the oldest node on sees every node after all it leads to.
void Engine::prune() {
  if (captures_.empty()) return;
  std::vector<Node*> order;
  for (const auto& node : claimed_) order.push_back(node.get());
  const auto age = [](const Node* n) { return n->accumulates() ? 0 : n->seq(); };
  std::sort(order.begin(), order.end(), [&](Node* a, Node* b) { return age(a) < age(b); });
  for (Node* node : order) {
    const auto at = captures_.lower_bound({node, 0});
    bool& needed = task(node).needed;
    needed = at != captures_.end() && at->first.first == node;
    for (const Edge& edge : node->edges()) needed |= edge.node && task(edge.node.get()).needed;
  }
}

void Engine::unclaim() noexcept {
  for (const auto& node : claimed_) {
    if (node->run_.load(std::memory_order_relaxed) != this) continue;
    node->task_.first_grad = Tensor();
    node->task_.other_grads.clear();
    node->run_.store(nullptr, std::memory_order_release);
  }
  guests_.clear();
  // Newest last: dropping the references one by one never recurses.
  claimed_.clear();
}

namespace {
/// Whether b goes before a.
bool goes_later(const Node* a, const Node* b) {
  if (a->accumulates() != b->accumulates()) return b->accumulates();
  return a->seq() < b->seq();
}
}  // namespace

void Engine::ready(Node* node) {
  heap_.push_back(node);
  std::push_heap(heap_.begin(), heap_.end(), goes_later);
}

Node* Engine::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), goes_later);
  Node* node = heap_.back();
  heap_.pop_back();
  return node;
}

void Engine::run() {
  const RunningGuard guard(this);
  const MemoryTagGuard tag(MemoryTag::kGradients);
  claim_all();
  prune();
  for (size_t i = 0; i < root_edges_.size(); ++i) {
    // A root that other roots lead to waits for them; the others start.
    ++task(root_edges_[i].node.get()).pending;
  }
  for (size_t i = 0; i < root_edges_.size(); ++i)
    deliver(root_edges_[i], std::move(root_grads_[i]));
  while (!heap_.empty()) run_node(pop());
  guard.end();
}

// In place where the sum so far is ours alone.
bool Engine::may_add_to(const Tensor& sum) const {
  return !options_.create_graph && sum.impl()->use_count() == 1 &&
         sum.storage()->use_count() == 1 && !overlaps_itself(sum);
}

Tensor Engine::sum_so_far(const Edge& edge) {
  const BackwardTask& work = task(edge.node.get());
  if (!work.needed || edge.output > 0 || !work.first_grad.defined()) return {};
  return may_add_to(work.first_grad) ? work.first_grad : Tensor();
}

Tensor Wants::sum_so_far(int i) const {
  return running.innermost && edges_[i].node ? running.innermost->sum_so_far(edges_[i]) : Tensor();
}

bool Engine::is_unseen(const Edge& edge) const {
  const auto captured = captures_.lower_bound({edge.node.get(), 0});
  const NodeExtras* extras = edge.node->extras_if_any();
  return !options_.create_graph && (!extras || extras->hooks.empty()) &&
         (captured == captures_.end() || captured->first.first != edge.node.get());
}

DType Wants::dtype_of(int i, DType dtype) const {
  const Edge& edge = edges_[static_cast<size_t>(i)];
  if (!running.innermost || !edge.node || !edge.node->converts_to()) return dtype;
  return running.innermost->is_unseen(edge) ? *edge.node->converts_to() : dtype;
}

void fail_released(const Node& node) {
  const Caller& caller = running.innermost ? running.innermost->caller() : kBackward;
  detail::fail<AutogradError>(caller.name, ": the tensors saved for ", node.name(),
                              " were already freed; call ", caller.retain,
                              " the first time to go through the graph twice, or detach() what is "
                              "carried over from the step before");
}

// Adds a gradient to what has arrived at an edge.
void Engine::deliver(const Edge& edge, Tensor grad) {
  Node* node = edge.node.get();
  BackwardTask& work = task(node);
  if (grad.defined() && work.needed) {
    if (edge.output > 0 && work.other_grads.size() < edge.output) {
      work.other_grads.resize(edge.output);
    }
    Tensor& slot = edge.output == 0 ? work.first_grad : work.other_grads[edge.output - 1];
    if (!slot.defined()) {
      slot = std::move(grad);
    } else if (may_add_to(slot) && slot.dtype() == grad.dtype()) {
      raw::add_(slot, grad);
    } else {
      slot = add(slot, grad);
    }
  }
  if (--work.pending == 0) ready(node);
}

void Engine::apply_hooks(Node* node, std::span<Tensor> grads) {
  const NodeExtras* extras = node->extras_if_any();
  if (!extras) return;
  const std::vector<NodeExtras::Hook> hooks = extras->hooks;  // a hook may remove itself
  for (const NodeExtras::Hook& hook : hooks) {
    Tensor& grad = grads[hook.output];
    if (!grad.defined()) continue;
    const Tensor replaced = hook.call(grad);
    if (!replaced.defined()) continue;
    TARN_CHECK_AS(ShapeError, replaced.sizes() == grad.sizes(),
                  "hook: the gradient it returns must have the same sizes; got ",
                  replaced.describe(), " for ", grad.describe());
    TARN_CHECK_AS(DTypeError, replaced.dtype() == grad.dtype(),
                  "hook: the gradient it returns must have the same dtype; got ",
                  replaced.describe(), " for ", grad.describe());
    grad = replaced;
  }
}

void Engine::run_node(Node* node) {
  // Moved out of the node, so that a gradient is freed as soon as its backward has used it.
  BackwardTask& work = task(node);
  Tensor single = std::move(work.first_grad);
  std::vector<Tensor> several;
  if (node->outputs() > 1) {
    several = std::move(work.other_grads);
    several.insert(several.begin(), std::move(single));
    several.resize(static_cast<size_t>(node->outputs()));
  }
  const std::span<Tensor> grads = node->outputs() > 1 ? std::span(several) : std::span(&single, 1);
  bool any = false;
  for (const Tensor& g : grads) any |= g.defined();
  if (any) apply_hooks(node, grads);
  if (!captures_.empty()) {
    for (auto at = captures_.lower_bound({node, 0});
         at != captures_.end() && at->first.first == node; ++at) {
      *at->second = grads[at->first.second];
    }
  }
  bool leads_on = node->accumulates() ? captures_.empty() : work.needed;
  if (!captures_.empty() && !node->accumulates()) {
    leads_on = false;
    for (const Edge& edge : node->edges()) leads_on |= edge.node && task(edge.node.get()).needed;
  }
  Grads inputs;
  if (any && leads_on) {
    const OpScope scope(node->name(), OpKind::kBackward, node->seq());
    inputs = node->backward(grads);
    if (__builtin_expect(anomaly_enabled(), 0)) check_anomaly(*node, inputs);
  }
  for (Tensor& g : grads) g = Tensor();
  // What was pruned may still be wanted by another pass.
  if (leads_on && !options_.retain_graph && !options_.create_graph) node->release_saved();
  const std::span<Edge> edges = node->edges();
  TARN_ASSERT(inputs.size() == 0 || inputs.size() == static_cast<int>(edges.size()));
  for (size_t i = 0; i < edges.size(); ++i) {
    if (!edges[i].node) continue;
    const int at = static_cast<int>(i);
    deliver(edges[i], at < inputs.size() ? std::move(inputs[at]) : Tensor());
  }
}

void backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              BackwardOptions options) {
  TARN_CHECK_AS(ValueError, grads.empty() || grads.size() == roots.size(),
                "backward: one gradient per tensor; got ", grads.size(), " for ", roots.size());
  Engine engine(kBackward, options);
  for (size_t i = 0; i < roots.size(); ++i) {
    engine.add_root(roots[i], grads.empty() ? Tensor() : grads[i]);
  }
  engine.run();
}

std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> grad_outputs, GradOptions options) {
  TARN_CHECK_AS(ValueError, grad_outputs.empty() || grad_outputs.size() == outputs.size(),
                "grad: one gradient per output; got ", grad_outputs.size(), " for ",
                outputs.size());
  std::vector<Tensor> results(inputs.size());
  Engine engine(kGrad, {options.retain_graph, options.create_graph});
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Edge edge = gradient_edge(inputs[i]);
    TARN_CHECK_AS(AutogradError, static_cast<bool>(edge.node), "grad: input ", i,
                  " does not require grad; got ", inputs[i].describe());
    engine.capture(edge, &results[i]);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    engine.add_root(outputs[i], grad_outputs.empty() ? Tensor() : grad_outputs[i]);
  }
  engine.run();
  for (size_t i = 0; i < inputs.size(); ++i) {
    TARN_CHECK_AS(AutogradError, options.allow_unused || results[i].defined(), "grad: input ", i,
                  " was not used to compute the outputs; got ", inputs[i].describe(),
                  "; pass allow_unused to get an undefined tensor instead");
  }
  return results;
}

}  // namespace tarn
