// recompute.h - activation checkpointing: what a function keeps for backward is computed again.
//
//   Tensor y = checkpoint([&](const Tensor& x) { return block(x); }, x);
//
// The function runs as usual and is recorded as usual, but the tensors its operations would keep
// are dropped. When backward needs the first of them, the function runs once more from its inputs
// and the tensors are taken from that run. So memory holds the inputs of every checkpointed
// function and the activations of one, for a second forward; gradients are bit-equal.
//
// The second run sees the same random numbers (of the default generator) and the same autocast;
// batch norm moves its running statistics in the first only. The graph is the one that was
// recorded, so hooks fire as without checkpoint, tied weights may be used inside and outside, and
// calls may be nested. The function must compute the same both times, and what it captures by
// reference must live until backward is done. Source: Chen et al. 2016, arXiv:1604.06174.
#pragma once

#include <functional>
#include <type_traits>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

using CheckpointFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

struct CheckpointOptions {
  bool preserve_random = true;  ///< replay the default generator; false where nothing is drawn
};

namespace detail {
inline thread_local int recomputing = 0;
std::vector<Tensor> run_checkpoint(CheckpointFunction fn, const std::vector<Tensor>& inputs,
                                   const CheckpointOptions& options);
}  // namespace detail

/// True inside the second run: for code with effects that must happen once.
inline bool is_recomputing() {
  return detail::recomputing > 0;
}

/// fn(inputs), keeping nothing of it but the inputs. fn takes a std::vector<Tensor> and returns a
/// Tensor or a std::vector<Tensor>; the result is of that type. backward throws AutogradError if an
/// input was changed in place meanwhile, or if the second run does not keep tensors like the first.
template <class F, class = std::enable_if_t<std::is_invocable_v<F, const std::vector<Tensor>&>>>
auto checkpoint(F fn, const std::vector<Tensor>& inputs, const CheckpointOptions& options = {}) {
  if constexpr (std::is_same_v<std::invoke_result_t<F, const std::vector<Tensor>&>, Tensor>) {
    return detail::run_checkpoint(
        [fn = std::move(fn)](const std::vector<Tensor>& in) { return std::vector<Tensor>{fn(in)}; },
        inputs, options)[0];
  } else {
    return detail::run_checkpoint(std::move(fn), inputs, options);
  }
}

/// The same for a function of one tensor.
template <class F, class = std::enable_if_t<std::is_invocable_v<F, const Tensor&>>>
Tensor checkpoint(F fn, const Tensor& x, const CheckpointOptions& options = {}) {
  return detail::run_checkpoint(
      [fn = std::move(fn)](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{fn(in[0])};
      },
      {x}, options)[0];
}

}  // namespace tarn
