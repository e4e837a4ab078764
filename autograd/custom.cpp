// custom.cpp - the node behind custom_function.
#include "tarn/autograd/custom.h"

#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/views.h"

namespace tarn {

namespace detail {

class CustomNode final : public Node {
 public:
  CustomNode(const char* name, const std::vector<Tensor>& inputs, int outputs, CustomContext ctx,
             CustomBackward backward)
      : Node(name, outputs), ctx_(std::move(ctx)), backward_(std::move(backward)) {
    for (const Tensor& x : inputs) {
      edges_store_.push_back(x.defined() ? gradient_edge(x) : Edge());
      ctx_.wants_.push_back(static_cast<bool>(edges_store_.back().node));
      inputs_.push_back(Like(x));
    }
    set_edges(edges_store_.data(), static_cast<int>(edges_store_.size()));
    ctx_.node_ = this;
  }

  // After the outputs have this node as their history.
  void pack(const std::vector<Tensor>& outputs) {
    for (const Tensor& y : outputs) outputs_like_.push_back(Like(y));
    ctx_.saved_.resize(ctx_.to_save_.size());
    for (size_t i = 0; i < ctx_.to_save_.size(); ++i) {
      ctx_.saved_[i].pack(ctx_.to_save_[i], this);
    }
    ctx_.to_save_.clear();
  }

  Grads backward(std::span<const Tensor> grads) override {
    if (released_) fail_released(*this);
    std::vector<Tensor> full(grads.begin(), grads.end());
    for (size_t i = 0; i < full.size(); ++i) {
      if (!full[i].defined()) full[i] = outputs_like_[i].zeros();
    }
    std::vector<Tensor> result = backward_(ctx_, full);
    check(result);
    return Grads(std::move(result));
  }

  void release_saved() override {
    ctx_.saved_.clear();
    backward_ = nullptr;  // captures may hold memory too
    released_ = true;
  }

 private:
  struct Like {
    explicit Like(const Tensor& x) : defined(x.defined()) {
      if (!defined) return;
      sizes = x.sizes();
      options = {.dtype = x.dtype(), .device = x.device()};
    }
    Tensor zeros() const { return tarn::zeros(sizes, options); }
    bool defined;
    Shape sizes;
    TensorOptions options;
  };

  void check(const std::vector<Tensor>& result) const {
    TARN_CHECK_AS(AutogradError, result.size() == inputs_.size(), name(),
                  ": backward must return one gradient per input; got ", result.size(), " for ",
                  inputs_.size());
    for (size_t i = 0; i < result.size(); ++i) {
      if (!result[i].defined() || !edges()[i].node) continue;
      const Like& input = inputs_[i];
      TARN_CHECK_AS(AutogradError,
                    result[i].sizes() == input.sizes && result[i].dtype() == input.options.dtype,
                    name(), ": backward must return gradients like the inputs; got ",
                    result[i].describe(), " for input ", i, ", which is ", input.sizes, " ",
                    input.options.dtype);
    }
  }

  CustomContext ctx_;
  CustomBackward backward_;
  std::vector<Edge> edges_store_;
  std::vector<Like> inputs_, outputs_like_;
};

std::vector<Tensor> run_custom(const char* name, const std::vector<Tensor>& inputs,
                               const CustomForward& forward, CustomBackward backward) {
  const OpScope scope(name);
  CustomContext ctx;
  std::vector<Tensor> outputs;
  {
    const NoGradGuard no_grad;
    outputs = forward(ctx, inputs);
  }
  TARN_CHECK_AS(ValueError, !outputs.empty(), name, ": forward must return at least one tensor");
  for (Tensor& y : outputs) {
    TARN_CHECK_AS(ValueError, y.defined(), name, ": forward returned an undefined tensor");
    // An input handed through is a new tensor, or it would become its own history.
    for (const Tensor& x : inputs) {
      if (y.is_same(x)) y = raw::alias(y);
    }
  }
  if (!any_requires_grad(std::span<const Tensor>(inputs))) return outputs;
  auto* node = new CustomNode(name, inputs, static_cast<int>(outputs.size()), std::move(ctx),
                              std::move(backward));
  const Ref<Node> ref(node);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    set_history(outputs[i], ref, static_cast<uint32_t>(i));
  }
  node->pack(outputs);
  return outputs;
}

}  // namespace detail

void CustomContext::save(const std::vector<Tensor>& tensors) {
  to_save_.insert(to_save_.end(), tensors.begin(), tensors.end());
}

Tensor CustomContext::saved(size_t i) const {
  TARN_CHECK_AS(AutogradError, node_,
                "CustomContext: saved() is for backward; forward has the tensors");
  TARN_CHECK_AS(IndexError, i < saved_.size(), node_->name(), ": saved tensor ", i,
                " was asked for; forward saved ", saved_.size());
  return saved_[i].unpack(*node_);
}

}  // namespace tarn
