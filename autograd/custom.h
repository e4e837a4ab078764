// custom.h - operations of one's own with a backward of one's own.
//
//   Tensor cube(const Tensor& x) {
//     return custom_function(
//         "cube", {x},
//         [](CustomContext& ctx, const std::vector<Tensor>& in) {
//           ctx.save(in);
//           return in[0] * in[0] * in[0];
//         },
//         [](const CustomContext& ctx, const std::vector<Tensor>& grads) {
//           return grads[0] * 3 * square(ctx.saved(0));
//         });
//   }
//
// Forward runs unrecorded. Backward may use any recorded operation, and then can be differentiated
// itself. Tensors that backward needs go through ctx.save(), where changes in place are noticed and
// memory is released after the pass; numbers and settings may simply be captured by the lambdas.
#pragma once

#include <functional>
#include <type_traits>
#include <vector>

#include "tarn/autograd/node.h"

namespace tarn {

namespace detail {
class CustomNode;
}

/// What forward hands to backward.
class CustomContext {
 public:
  /// Forward: keeps these tensors (inputs, outputs or others) for backward.
  void save(const std::vector<Tensor>& tensors);
  /// Backward: tensor number i as saved. Throws AutogradError if it was changed in place since, or
  /// in forward, and IndexError if there is none.
  Tensor saved(size_t i) const;
  /// Whether the gradient of input number i is asked for; backward may return an undefined tensor
  /// where it is not.
  bool wants(size_t i) const { return i < wants_.size() && wants_[i]; }

 private:
  friend class detail::CustomNode;
  std::vector<Tensor> to_save_;     // between forward and recording
  std::vector<SavedTensor> saved_;  // afterwards
  std::vector<bool> wants_;
  const Node* node_ = nullptr;
};

using CustomForward =
    std::function<std::vector<Tensor>(CustomContext&, const std::vector<Tensor>&)>;
using CustomBackward =
    std::function<std::vector<Tensor>(const CustomContext&, const std::vector<Tensor>&)>;

namespace detail {
std::vector<Tensor> run_custom(const char* name, const std::vector<Tensor>& inputs,
                               const CustomForward& forward, CustomBackward backward);

inline std::vector<Tensor> listed(Tensor x) {
  return {std::move(x)};
}
inline std::vector<Tensor> listed(std::vector<Tensor> x) {
  return x;
}
}  // namespace detail

/// Runs forward(ctx, inputs) and records it with backward(ctx, grads). Both return a Tensor or a
/// std::vector<Tensor>; the result is of forward's type. backward gets one gradient per output
/// (zeros where none arrived) and returns one per input, of the input's sizes and dtype, or
/// undefined; anything else is an AutogradError. `name` must outlive the graph (a literal).
template <class Forward, class Backward>
auto custom_function(const char* name, const std::vector<Tensor>& inputs, Forward forward,
                     Backward backward) {
  using Result = std::invoke_result_t<Forward, CustomContext&, const std::vector<Tensor>&>;
  std::vector<Tensor> outputs = detail::run_custom(
      name, inputs,
      [&](CustomContext& ctx, const std::vector<Tensor>& in) {
        return detail::listed(forward(ctx, in));
      },
      [backward = std::move(backward)](const CustomContext& ctx, const std::vector<Tensor>& grads) {
        return detail::listed(backward(ctx, grads));
      });
  if constexpr (std::is_same_v<Result, Tensor>) {
    return outputs[0];
  } else {
    return outputs;
  }
}

}  // namespace tarn
