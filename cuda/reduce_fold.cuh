// reduce_fold.cuh - what one thread does with the elements of a reduction: folds and stores.
//
// A fold takes elements (add for kLanes of them at once, add_one for the rest) and ends in a Wide
// value, which Op::join merges. A store writes the Wide value of an output.
#pragma once

#include <algorithm>

#include "tarn/core/cast.h"
#include "tarn/core/reduce_ops.h"
#include "tarn/cuda/vec.cuh"

namespace tarn::cuda {

/// Folds with one of the operations of core/reduce_ops.h. Elements are folded in the operation's
/// Lane type and merged in its Wide type (f64 for sums); where that is wider, after every kFlush.
template <class O, class T>
struct LaneFold {
  using Op = O;
  using Input = T;
  using Lane = typename Op::Lane;
  using Wide = typename Op::Wide;
  static constexpr int kLanes = std::min<int>(kVecWidth<T>, 32 / sizeof(Lane));  // registers
  static constexpr int kFlush = 64;

  Op op;
  Lane lanes[kLanes];
  Wide total;
  int pending = 0;

  __device__ explicit LaneFold(const Op& op_in) : op(op_in), total(identity(op_in)) { clear(); }
  __device__ static Wide identity(const Op& op) { return static_cast<Wide>(op.init()); }

  __device__ __forceinline__ void add(const Vec<T, kLanes>& x, int64_t, int64_t) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) lanes[i] = op.step(lanes[i], cast_value<Lane>(x.v[i]));
    if constexpr (!std::is_same_v<Lane, Wide>) {
      if (++pending == kFlush) flush();
    }
  }
  __device__ __forceinline__ void add_one(T x, int64_t) {
    lanes[0] = op.step(lanes[0], cast_value<Lane>(x));
  }
  __device__ __forceinline__ void merge(const Wide& other) {
    total = op.join(total, other);
  }
  __device__ __forceinline__ Wide result() {
    flush();
    return total;
  }

 private:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) lanes[i] = op.init();
    pending = 0;
  }
  __device__ __forceinline__ void flush() {
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i < half; ++i) lanes[i] = op.join(lanes[i], lanes[i + half]);
    }
    total = op.join(total, static_cast<Wide>(lanes[0]));
    clear();
  }
};

/// Writes `value` as an element of the given type.
template <class W>
__device__ __forceinline__ void store_as(void* out, DType dtype, int64_t at, W value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(out)[at] = static_cast<float>(value);
      break;
    case DType::kF64:
      static_cast<double*>(out)[at] = static_cast<double>(value);
      break;
    case DType::kF16:
      static_cast<half*>(out)[at] = half(static_cast<float>(value));
      break;
    case DType::kBF16:
      static_cast<bfloat16*>(out)[at] = bfloat16(static_cast<float>(value));
      break;
    case DType::kI64:
      static_cast<int64_t*>(out)[at] = static_cast<int64_t>(value);
      break;
    case DType::kI32:
      static_cast<int32_t*>(out)[at] = static_cast<int32_t>(value);
      break;
    case DType::kU8:
      static_cast<uint8_t*>(out)[at] = static_cast<uint8_t>(value);
      break;
    case DType::kBool:
      static_cast<bool*>(out)[at] = value != W(0);
      break;
  }
}

/// The store of LaneFold. kRoot: the finish is a root, which only norms of any p have.
template <bool kRoot>
struct ValueStore {
  void* out;
  DType dtype;
  Finish finish;

  template <class W>
  __device__ void operator()(int64_t at, W value) const {
    if constexpr (std::is_same_v<W, double>) {
      if constexpr (kRoot) {
        value = math::pow(value, finish.argument);
      } else {
        value = finish.kind == Finish::kDivide ? value / finish.argument
                : finish.kind == Finish::kSqrt ? math::sqrt(value)
                                               : value;
      }
    }
    store_as(out, dtype, at, value);
  }
};

}  // namespace tarn::cuda
