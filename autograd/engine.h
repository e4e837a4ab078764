// engine.h - walks the tape backwards.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

struct BackwardOptions {
  bool retain_graph = false;
  bool create_graph = false;
};

/// Adds d(sum of roots * grads)/d(leaf) into .grad of every leaf that requires it. grads[i] may be
/// undefined for a single-element root (1). Throws AutogradError if a root has no history.
void backward(std::span<const Tensor> roots, std::span<const Tensor> grads = {},
              BackwardOptions options = {});

/// Called from a hook while a backward runs: `callback` runs when that backward, the outermost one
/// if they are nested, has ended well. What it throws reaches the caller of backward. Dropped if
/// the backward throws. Throws AutogradError if this thread runs no backward.
void on_backward_end(std::function<void()> callback);

struct GradOptions {
  bool retain_graph = false;
  bool create_graph = false;
  bool allow_unused = false;
};
/// The gradients of `inputs`, returned instead of accumulated; only what leads to them is computed.
/// An input that was not used gives an undefined tensor with allow_unused, else AutogradError.
std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> grad_outputs = {}, GradOptions options = {});
/// Tensors named in place: grad({loss}, {w, b}).
inline std::vector<Tensor> grad(std::initializer_list<Tensor> outputs,
                                std::initializer_list<Tensor> inputs,
                                std::initializer_list<Tensor> grad_outputs = {},
                                GradOptions options = {}) {
  return grad(std::span<const Tensor>(outputs), std::span<const Tensor>(inputs),
              std::span<const Tensor>(grad_outputs), options);
}
/// Of one output: grad(loss, net.parameters()), grad(loss, x).
inline std::vector<Tensor> grad(const Tensor& output, std::span<const Tensor> inputs,
                                const Tensor& grad_output = {}, GradOptions options = {}) {
  return grad(std::span<const Tensor>(&output, 1), inputs, std::span<const Tensor>(&grad_output, 1),
              options);
}
inline Tensor grad(const Tensor& output, const Tensor& input, const Tensor& grad_output = {},
                   GradOptions options = {}) {
  return grad(output, std::span<const Tensor>(&input, 1), grad_output, options)[0];
}

}  // namespace tarn
