// op_table_inputs.h - the tensors a row is called on: seeded values, and the same values laid out
// in memory in other ways.
#pragma once

#include <random>

#include "op_table.h"

namespace tarn::optable {

using Rng = std::mt19937_64;

/// Until it ends, inputs are made on a device.
class InputDeviceGuard {
 public:
  explicit InputDeviceGuard(Device device);
  ~InputDeviceGuard();
  InputDeviceGuard(const InputDeviceGuard&) = delete;
  InputDeviceGuard& operator=(const InputDeviceGuard&) = delete;

 private:
  Device previous_;
};

/// A generator that depends on the row's name alone, so that rows do not disturb each other.
Rng rng_for(const std::string& name);

/// Dense inputs of a case; reals in `dtype` (integers: rounded into the range), indices in i64.
std::vector<Tensor> make_inputs(const Case& c, DType dtype, Rng& rng);
/// Uniform in [-1, 1), exact in bf16, like x.
Tensor random_like(const Tensor& x, Rng& rng);

/// The real ones converted to dtype.
std::vector<Tensor> converted(const std::vector<Tensor>& in, const Case& c, DType dtype);
/// requires_grad where the case wants it; new handles.
std::vector<Tensor> as_leaves(const std::vector<Tensor>& in, const Case& c);

enum class Layout {
  kTransposed,       ///< dimensions in reverse order in memory
  kFirstTransposed,  ///< the first input so, the others dense
  kSliced,           ///< every second element of something larger, NaN in between
  kExpandedFirst,    ///< stride 0 in the first dimension (changes the values)
  kExpandedLast,     ///< stride 0 in the last
  kChannelsLast,     ///< 4-d inputs only
};
std::vector<Tensor> laid_out(const std::vector<Tensor>& in, Layout layout);

/// All combinations of NaN, infinities, signed zeros, huge and tiny numbers for `count` inputs, as
/// 1-d tensors.
std::vector<Tensor> special_inputs(size_t count, DType dtype);

}  // namespace tarn::optable
