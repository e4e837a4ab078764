// half_buffer.h - f32 copies of f16 and bf16 arrays, for kernels that compute in f32 only.
#pragma once

#include <cstdint>

#include "tarn/core/allocator.h"
#include "tarn/core/dtype.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {

constexpr int64_t kConvertGrain = 1 << 14;

/// Memory for `count` floats from the caching allocator: fresh pages each time would cost more than
/// the conversion.
class FloatBlock {
 public:
  explicit FloatBlock(int64_t count) {
    const MemoryTagGuard tag(MemoryTag::kWorkspace);
    memory_ = allocate(static_cast<size_t>(count) * sizeof(float), Stream{kCPU});
  }
  ~FloatBlock() { deallocate(memory_, kCPU); }
  FloatBlock(const FloatBlock&) = delete;
  FloatBlock& operator=(const FloatBlock&) = delete;
  float* data() const { return static_cast<float*>(memory_.ptr); }

 private:
  Allocation memory_;
};

/// An f32 array that takes its values from, or gives them to, an array of halves.
class FloatCopy {
 public:
  explicit FloatCopy(int64_t count) : count_(count), data_(count) {}
  FloatCopy(const void* halves, DType dtype, int64_t count) : FloatCopy(count) {
    visit(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* __restrict from = static_cast<const T*>(halves);
      float* __restrict to = data_.data();
      parallel_for(count, kConvertGrain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = float(from[i]);
      });
    });
  }

  void store(void* halves, DType dtype) const {
    visit(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* __restrict to = static_cast<T*>(halves);
      const float* __restrict from = data_.data();
      parallel_for(count_, kConvertGrain, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = T(from[i]);
      });
    });
  }

  float* data() { return data_.data(); }

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
  FloatBlock data_;
};

}  // namespace tarn::cpu
