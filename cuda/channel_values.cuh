// channel_values.cuh - small per-channel (or per-column) vectors of any floating dtype.
#pragma once

#include "tarn/core/tensor.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {

/// A vector to read, or none.
struct ChannelValues {
  const void* data = nullptr;
  DType dtype = DType::kF32;

  ChannelValues() = default;
  explicit ChannelValues(const Tensor& t) : data(t.data_or_null()) {
    if (t.defined()) dtype = t.dtype();
  }
  /// out[k] = value c + k, or `fallback` if there is no vector. One switch for all k: compilers
  /// thread a row of equal switches into every combination of their cases.
  template <class A, int kCount>
  __device__ __forceinline__ void load(int64_t c, A fallback, A (&out)[kCount]) const {
    if (!data) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) out[k] = fallback;
    } else if (dtype == DType::kF64) {
      load_as(static_cast<const double*>(data) + c, out);
    } else if (dtype == DType::kF16) {
      load_as(static_cast<const half*>(data) + c, out);
    } else if (dtype == DType::kBF16) {
      load_as(static_cast<const bfloat16*>(data) + c, out);
    } else {
      load_as(static_cast<const float*>(data) + c, out);
    }
  }

 private:
  template <class T, class A, int kCount>
  static __device__ __forceinline__ void load_as(const T* from, A (&out)[kCount]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) out[k] = static_cast<A>(static_cast<compute_t<T>>(from[k]));
  }
};

/// A vector to write, or none.
struct ChannelResult {
  void* data = nullptr;
  DType dtype = DType::kF32;

  ChannelResult() = default;
  explicit ChannelResult(const Tensor& t) : data(t.data_or_null()) {
    if (t.defined()) dtype = t.dtype();
  }
  __device__ void set(int64_t c, double value) const {
    if (!data) return;
    if (dtype == DType::kF64) {
      static_cast<double*>(data)[c] = value;
    } else if (dtype == DType::kF16) {
      static_cast<half*>(data)[c] = half(static_cast<float>(value));
    } else if (dtype == DType::kBF16) {
      static_cast<bfloat16*>(data)[c] = bfloat16(static_cast<float>(value));
    } else {
      static_cast<float*>(data)[c] = static_cast<float>(value);
    }
  }
};

}  // namespace tarn::cuda
