// half_buffer.h - f32 copies of f16 and bf16 arrays, for kernels that compute in f32 only.
#pragma once

#include <cstdint>
#include <memory>

#include "tarn/core/dtype.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {

constexpr int64_t kConvertGrain = 1 << 14;

/// An f32 array that takes its values from, or gives them to, an array of halves.
class FloatCopy {
 public:
  explicit FloatCopy(int64_t count)
      : count_(count), data_(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count))) {}
  FloatCopy(const void* halves, DType dtype, int64_t count) : FloatCopy(count) {
    visit(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* from = static_cast<const T*>(halves);
      parallel_for(count, kConvertGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) data_[static_cast<size_t>(i)] = float(from[i]);
      });
    });
  }

  void store(void* halves, DType dtype) const {
    visit(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* to = static_cast<T*>(halves);
      parallel_for(count_, kConvertGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = T(data_[static_cast<size_t>(i)]);
      });
    });
  }

  float* data() { return data_.get(); }

 private:
  template <typename F>
  static void visit(DType dtype, F f) {
    if (dtype == DType::kF16) {
      f(TypeTag<half>{});
    } else {
      f(TypeTag<bfloat16>{});
    }
  }

  int64_t count_;
  std::unique_ptr<float[]> data_;
};

}  // namespace tarn::cpu
