// factory.h - tensors from nothing: empty, zeros, full, arange, from values.
#pragma once

#include <concepts>
#include <initializer_list>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

/// How a new tensor is made; use designated initialisers: zeros({2, 3}, {.dtype = DType::kF64}).
struct TensorOptions {
  DType dtype = DType::kF32;
  Device device = kCPU;
  MemoryFormat format = MemoryFormat::kContiguous;
};

Tensor empty(const Shape& sizes, const TensorOptions& options = {});
/// Uninitialised, with the given strides (in elements).
Tensor empty_strided(const Shape& sizes, const Shape& strides, const TensorOptions& options = {});
/// Like `like` in sizes, dtype, device and, for dense tensors, layout.
Tensor empty_like(const Tensor& like);
Tensor empty_like(const Tensor& like, DType dtype);
Tensor zeros(const Shape& sizes, const TensorOptions& options = {});
Tensor ones(const Shape& sizes, const TensorOptions& options = {});
/// Throws ValueError where an integer dtype cannot hold value; so do full_like, scalar_tensor and
/// fill_.
Tensor full(const Shape& sizes, const Scalar& value, const TensorOptions& options = {});
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
Tensor full_like(const Tensor& like, const Scalar& value);
/// [start, end) in steps of `step`; ceil((end - start) / step) values. Throws ValueError on a
/// start or step that is not whole for an integer dtype.
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step,
              const TensorOptions& options = {.dtype = DType::kI64});
Tensor arange(int64_t end, const TensorOptions& options = {.dtype = DType::kI64});
/// `steps` values from start to end, both included. For an integer dtype the ends are rounded
/// toward zero, then the values.
Tensor linspace(double start, double end, int64_t steps, const TensorOptions& options = {});
/// Identity matrix [n, m].
Tensor eye(int64_t n, int64_t m, const TensorOptions& options = {});
/// A 0-d tensor.
Tensor scalar_tensor(const Scalar& value, const TensorOptions& options = {});

/// Copies values (row-major) into a new tensor of this shape. Throws ShapeError if the counts
/// differ.
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& sizes, Device device = kCPU);

/// A number, or a list in braces of such.
class NestedValues {
 public:
  NestedValues(double value) : value_(value) {}
  NestedValues(std::initializer_list<NestedValues> list) : list_(list), is_list_(true) {}
  bool is_list() const { return is_list_; }
  double value() const { return value_; }
  const std::vector<NestedValues>& list() const { return list_; }

 private:
  double value_ = 0;
  std::vector<NestedValues> list_;
  bool is_list_ = false;
};
/// The sizes are as the braces nest: tensor({1, 2}) is [2], tensor({{1, 2}, {3, 4}}) is [2, 2],
/// tensor(1) is 0-d. Or given: tensor({1, 2, 3, 4}, {2, 2}). Throws ShapeError if lists of one
/// depth differ in length.
Tensor tensor(const NestedValues& values, const TensorOptions& options = {});
Tensor tensor(const NestedValues& values, const Shape& sizes, const TensorOptions& options = {});
namespace detail {
Tensor from_doubles(const std::vector<double>& values, const Shape& sizes,
                    const TensorOptions& options);
}
/// Of a list in a variable. A template, so that braces never come here.
template <std::same_as<std::initializer_list<double>> List>
Tensor tensor(List values, const Shape& sizes, const TensorOptions& options = {}) {
  return detail::from_doubles(std::vector<double>(values), sizes, options);
}
template <std::same_as<std::initializer_list<double>> List>
Tensor tensor(List values, const TensorOptions& options = {}) {
  return tensor(values, Shape{static_cast<int64_t>(values.size())}, options);
}
/// A tensor over memory owned by the caller, who keeps it alive; `release` runs after the last use.
Tensor from_blob(void* data, const Shape& sizes, DType dtype,
                 std::function<void()> release = nullptr);

}  // namespace tarn
