// factory.h - tensors from nothing: empty, zeros, full, arange, from values.
#pragma once

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
Tensor full(const Shape& sizes, const Scalar& value, const TensorOptions& options = {});
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
Tensor full_like(const Tensor& like, const Scalar& value);
/// [start, end) in steps of `step`; ceil((end - start) / step) values.
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step,
              const TensorOptions& options = {.dtype = DType::kI64});
Tensor arange(int64_t end, const TensorOptions& options = {.dtype = DType::kI64});
/// `steps` values from start to end, both included.
Tensor linspace(double start, double end, int64_t steps, const TensorOptions& options = {});
/// Identity matrix [n, m].
Tensor eye(int64_t n, int64_t m, const TensorOptions& options = {});
/// A 0-d tensor.
Tensor scalar_tensor(const Scalar& value, const TensorOptions& options = {});

/// Copies values (row-major) into a new tensor of this shape. Throws ShapeError if the counts
/// differ.
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& sizes, Device device = kCPU);
/// A 1-d tensor, or of `sizes`: tensor({1, 2, 3, 4}, {2, 2}).
Tensor tensor(std::initializer_list<double> values, const TensorOptions& options = {});
Tensor tensor(std::initializer_list<double> values, const Shape& sizes,
              const TensorOptions& options = {});
/// A tensor over memory owned by the caller, who keeps it alive; `release` runs after the last use.
Tensor from_blob(void* data, const Shape& sizes, DType dtype,
                 std::function<void()> release = nullptr);

}  // namespace tarn
