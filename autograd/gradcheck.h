// gradcheck.h - compares recorded gradients with central differences: for checking one's own
// operations and losses.
//
//   Tensor x = randn({3, 4}, {.dtype = DType::kF64}).set_requires_grad();
//   gradcheck([](const std::vector<Tensor>& in) { return my_loss(in[0]); }, {x});  // true, or
//   throws
//
// Keep inputs away from kinks (relu at 0, ties of max): there the two sides rightly differ.
#pragma once

#include <functional>
#include <type_traits>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

struct GradcheckOptions {
  double eps = 1e-6;  ///< step of the central difference
  double atol = 1e-5;
  double rtol = 1e-3;
  double nondet_tol = 0;  ///< how far two backward passes may differ
  bool fast = false;      ///< random directions instead of every element
  int directions = 2;     ///< of the fast mode
  uint64_t seed = 0;      ///< of the directions, and of gradgradcheck's output gradients
};

/// Checks d(outputs)/d(inputs) of fn for every input that requires grad, which must be f64. fn must
/// compute the same from the same values; it gets tensors that require grad as the inputs do. Each
/// |analytic - numeric| must be at most atol + rtol * |numeric|. Returns true, or throws
/// AutogradError that names input, output, both indices and both values. An output without history
/// counts as having gradient zero. Inputs may have any strides; their values are left alone.
bool gradcheck(const TensorFunction& fn, const std::vector<Tensor>& inputs,
               const GradcheckOptions& options = {});

/// The same for the gradients themselves: second derivatives, by way of grad(create_graph).
/// grad_outputs are random unless given.
bool gradgradcheck(const TensorFunction& fn, const std::vector<Tensor>& inputs,
                   const GradcheckOptions& options = {},
                   const std::vector<Tensor>& grad_outputs = {});

namespace detail {
template <class F>
inline constexpr bool returns_one_tensor =
    std::is_same_v<std::invoke_result_t<F, const std::vector<Tensor>&>, Tensor>;

template <class F>
TensorFunction as_list(F fn) {
  return
      [fn = std::move(fn)](const std::vector<Tensor>& in) { return std::vector<Tensor>{fn(in)}; };
}
}  // namespace detail

/// For functions with a single result.
template <class F, class = std::enable_if_t<detail::returns_one_tensor<F>>>
bool gradcheck(F fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options = {}) {
  return gradcheck(detail::as_list(std::move(fn)), inputs, options);
}
template <class F, class = std::enable_if_t<detail::returns_one_tensor<F>>>
bool gradgradcheck(F fn, const std::vector<Tensor>& inputs, const GradcheckOptions& options = {},
                   const std::vector<Tensor>& grad_outputs = {}) {
  return gradgradcheck(detail::as_list(std::move(fn)), inputs, options, grad_outputs);
}

}  // namespace tarn
