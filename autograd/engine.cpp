// engine.cpp - walks the tape backwards.
//
// First every node that the roots reach is claimed and its incoming edges are counted. A node runs
// when the gradients of all its uses have arrived; of the ready ones the youngest goes first, which
// keeps the order of summation, and so every bit, the same from run to run. Leaves go before
// everything else, so that gradient hooks fire, and communication starts, as early as possible.
#include "tarn/autograd/engine.h"

#include <algorithm>
#include <map>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/functions_elementwise.h"
#include "tarn/autograd/meta.h"
#include "tarn/core/factory.h"
#include "tarn/core/plan.h"
#include "tarn/core/profiler.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {

class Engine {
 public:
  explicit Engine(BackwardOptions options) : options_(options), mode_(options.create_graph) {}
  ~Engine() { unclaim(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void add_root(const Tensor& root, Tensor grad);
  /// Asks for the gradient at an edge instead of accumulating there.
  void capture(const Edge& edge, Tensor* into);
  void run();

 private:
  void claim_all();
  void prune();
  void unclaim() noexcept;
  void claim(Node* node);
  void ready(Node* node);
  Node* pop();
  void run_node(Node* node);
  void apply_hooks(Node* node, std::span<Tensor> grads);
  void deliver(const Edge& edge, Tensor grad);

  BackwardOptions options_;
  GradModeGuard mode_;
  std::vector<Edge> root_edges_;
  std::vector<Tensor> root_grads_;
  std::vector<Ref<Node>> claimed_;
  std::vector<Node*> heap_;
  std::multimap<std::pair<Node*, uint32_t>, Tensor*> captures_;
};

void Engine::add_root(const Tensor& root, Tensor grad) {
  Edge edge = gradient_edge(root);
  TARN_CHECK_AS(AutogradError, static_cast<bool>(edge.node),
                "backward: the tensor does not require grad and has no history; got ",
                root.describe());
  if (!grad.defined()) {
    TARN_CHECK_AS(ShapeError, root.numel() == 1,
                  "backward: a gradient must be given unless the tensor has one element; got ",
                  root.describe(), "; reduce it with sum() or mean() first");
    grad = ones_like(root);
  }
  TARN_CHECK_AS(ShapeError, grad.sizes() == root.sizes(),
                "backward: the gradient must have the tensor's sizes; got gradient=",
                grad.describe(), " for ", root.describe());
  root_edges_.push_back(std::move(edge));
  root_grads_.push_back(std::move(grad));
}

void Engine::capture(const Edge& edge, Tensor* into) {
  captures_.emplace(std::pair(edge.node.get(), edge.output), into);
}

void Engine::claim(Node* node) {
  void* expected = nullptr;
  TARN_CHECK_AS(AutogradError, node->run_.compare_exchange_strong(expected, this),
                "backward: ", node->name(),
                " is part of another backward pass that is running now; one pass at a ",
                "time may walk a graph");
  node->pending_ = 0;
  node->needed_ = captures_.empty();
  claimed_.emplace_back(node);
}

void Engine::claim_all() {
  for (const Edge& root : root_edges_) {
    if (root.node->run_.load(std::memory_order_relaxed) != this) claim(root.node.get());
  }
  for (size_t i = 0; i < claimed_.size(); ++i) {
    Node* node = claimed_[i].get();
    for (const Edge& edge : node->edges()) {
      if (!edge.node) continue;
      if (edge.node->run_.load(std::memory_order_relaxed) != this) claim(edge.node.get());
      ++edge.node->pending_;
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
    node->needed_ = at != captures_.end() && at->first.first == node;
    for (const Edge& edge : node->edges()) node->needed_ |= edge.node && edge.node->needed_;
  }
}

void Engine::unclaim() noexcept {
  for (const auto& node : claimed_) {
    node->first_grad_ = Tensor();
    node->other_grads_.clear();
    node->run_.store(nullptr, std::memory_order_release);
  }
  // Newest last: dropping the references one by one never recurses.
  claimed_.clear();
}

namespace {
bool older(const Node* a, const Node* b) {
  return a->seq() < b->seq();
}
}  // namespace

void Engine::ready(Node* node) {
  heap_.push_back(node);
  std::push_heap(heap_.begin(), heap_.end(), older);
}

Node* Engine::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), older);
  Node* node = heap_.back();
  heap_.pop_back();
  return node;
}

void Engine::run() {
  claim_all();
  prune();
  for (size_t i = 0; i < root_edges_.size(); ++i) {
    // A root that other roots lead to waits for them; the others start.
    ++root_edges_[i].node->pending_;
  }
  for (size_t i = 0; i < root_edges_.size(); ++i)
    deliver(root_edges_[i], std::move(root_grads_[i]));
  while (!heap_.empty()) run_node(pop());
}

// Adds a gradient to what has arrived at an edge. In place where the sum so far is ours alone.
void Engine::deliver(const Edge& edge, Tensor grad) {
  Node* node = edge.node.get();
  if (grad.defined() && node->needed_) {
    if (edge.output > 0 && node->other_grads_.size() < edge.output) {
      node->other_grads_.resize(edge.output);
    }
    Tensor& slot = edge.output == 0 ? node->first_grad_ : node->other_grads_[edge.output - 1];
    if (!slot.defined()) {
      slot = std::move(grad);
    } else if (options_.create_graph || slot.impl()->use_count() > 1 ||
               slot.storage()->use_count() > 1 || slot.dtype() != grad.dtype() ||
               overlaps_itself(slot)) {
      slot = add(slot, grad);
    } else {
      raw::add_(slot, grad);
    }
  }
  if (--node->pending_ == 0) ready(node);
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
    grad = replaced;
  }
}

void Engine::run_node(Node* node) {
  // Moved out of the node, so that a gradient is freed as soon as its backward has used it.
  Tensor single = std::move(node->first_grad_);
  std::vector<Tensor> several;
  if (node->outputs() > 1) {
    several = std::move(node->other_grads_);
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
  bool leads_on = node->accumulates() ? captures_.empty() : node->needed_;
  if (!captures_.empty() && !node->accumulates()) {
    leads_on = false;
    for (const Edge& edge : node->edges()) leads_on |= edge.node && edge.node->needed_;
  }
  Grads inputs;
  if (any && leads_on) {
    const OpScope scope(node->name());
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
  Engine engine(options);
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
  Engine engine({options.retain_graph, options.create_graph});
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
