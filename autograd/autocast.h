// autocast.h - mixed precision: operations cast their inputs to the dtype that suits them.
//
//   {
//     const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
//     loss = cross_entropy(net(x), y);
//   }
//   loss.backward();
//
// The parameters stay f32 and get f32 gradients: the casts are recorded. Products (matmul, linear,
// convolution, attention) run in the low dtype; exponentials, powers, sums, softmax, norms, losses
// and linear algebra in f32; operations between several tensors in the widest dtype among them;
// the rest in whatever it gets. The lists are PyTorch's for GPUs, here on every device. f64 is
// never cast, and neither are in-place operations. backward runs with autocast off: its formulas
// use the dtypes of the forward, inside the guard as outside.
//
// A policy is the first line of an operation:
//
//   Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
//     if (const auto c = cast(CastPolicy::kLow, x, weight, bias)) return linear(c[0], c[1], c[2]);
#pragma once

#include <array>
#include <cstdint>

#include "tarn/core/tensor.h"

namespace tarn {

enum class CastPolicy : uint8_t {
  kLow,      ///< f32 and the other half go to the low dtype
  kF32,      ///< halves go to f32
  kPromote,  ///< all go to the widest floating dtype among them
};

/// What autocast does in this thread.
struct AutocastState {
  bool on[kNumDeviceTypes] = {};
  DType low[kNumDeviceTypes] = {DType::kBF16, DType::kF16};
};
AutocastState autocast_state();
/// Whether operations on tensors of this kind of device are cast.
bool autocast_enabled(DeviceType device);

/// Switches autocast on (or, with enabled = false, off) for this thread and one kind of device
/// until the guard ends. Casts of parameters are kept until the outermost guard ends, so a weight
/// that is used several times is cast once; one that is written to is cast anew. Throws DTypeError
/// unless low is f16 or bf16. f16 has a small range: use a GradScaler.
class AutocastGuard {
 public:
  explicit AutocastGuard(DeviceType device, DType low = DType::kBF16, bool enabled = true);
  /// As it was when `state` was taken: for computing again what was computed then.
  explicit AutocastGuard(const AutocastState& state);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState previous_;
  bool was_on_;
};

namespace detail {
/// The one test an operation pays while autocast is off.
inline thread_local bool autocast_on = false;
/// Puts the cast inputs into `out`; false if none has to be cast.
bool cast_inputs(CastPolicy policy, const Tensor* const* inputs, Tensor* out, size_t count);
/// Drops the cast of a parameter that is kept until the outermost guard ends, where the parameter's
/// own memory goes before that. The next operation casts it anew; what is recorded keeps its cast.
void forget_cast(const Tensor& parameter);
}  // namespace detail

/// Off until the guard ends, for library code that has chosen its dtypes.
class AutocastOffGuard {
 public:
  AutocastOffGuard() : previous_(detail::autocast_on) { detail::autocast_on = false; }
  ~AutocastOffGuard() { detail::autocast_on = previous_; }
  AutocastOffGuard(const AutocastOffGuard&) = delete;
  AutocastOffGuard& operator=(const AutocastOffGuard&) = delete;

 private:
  bool previous_;
};

/// The inputs of an operation after its policy; false if they may stay as they are.
template <size_t N>
class CastInputs {
 public:
  explicit operator bool() const { return changed_; }
  const Tensor& operator[](size_t i) const { return inputs_[i]; }
  void apply(CastPolicy policy, const std::array<const Tensor*, N>& from) {
    changed_ = detail::cast_inputs(policy, from.data(), inputs_.data(), N);
  }

 private:
  std::array<Tensor, N> inputs_;
  bool changed_ = false;
};

template <class... T>
CastInputs<sizeof...(T)> cast(CastPolicy policy, const T&... inputs) {
  CastInputs<sizeof...(T)> c;
  if (__builtin_expect(detail::autocast_on, 0)) c.apply(policy, {&inputs...});
  return c;
}

/// The dtype in which an operation of the f32 list answers x, for those whose kernels widen as they
/// read and so need no cast copy.
inline DType widened_dtype(const Tensor& x) {
  const bool widens =
      detail::autocast_on && is_half(x.dtype()) && autocast_enabled(x.device().type);
  return widens ? DType::kF32 : x.dtype();
}

}  // namespace tarn
