// layer_norm_rows.cuh - what the layer norm kernels share: loads of rows and of their weights, and
// what rows the kernels take.
#pragma once

#include "tarn/cuda/channel_values.cuh"
#include "tarn/cuda/in_compute_type.cuh"
#include "tarn/cuda/vec.cuh"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {

inline constexpr int kRowThreads = 256;

/// V weights from p on; p null: `fallback`.
template <int V, class A>
__device__ __forceinline__ void load_affine(const A* p, A fallback, int at, A (&out)[V]) {
  constexpr int kStep = V == 1 ? 1 : kVecWidth<A>;
#pragma unroll
  for (int k = 0; k < V; k += kStep) {
    if (p) {
      const Vec<A, kStep> v = load_vec<kStep>(p + at + k);
#pragma unroll
      for (int j = 0; j < kStep; ++j) out[k + j] = v.v[j];
    } else {
#pragma unroll
      for (int j = 0; j < kStep; ++j) out[k + j] = fallback;
    }
  }
}

struct TwoSums {
  double a, b;
  __device__ TwoSums operator+(const TwoSums& o) const { return {a + o.a, b + o.b}; }
};

template <class T, int V>
__device__ __forceinline__ void load_as(const T* p, compute_t<T> (&out)[V]) {
  const Vec<T, V> in = load_vec<V>(p);
#pragma unroll
  for (int k = 0; k < V; ++k) out[k] = static_cast<compute_t<T>>(in.v[k]);
}

/// True if kVecWidth numbers of a row of n can be moved at once.
template <class T>
bool takes_vectors(int64_t n, std::initializer_list<const Tensor*> tensors) {
  return n % kVecWidth<T> == 0 && all_aligned(tensors);
}

/// Numbers of a row: kernels count them, and twice as many, in 32 bits.
inline int row_length(const char* op, const Tensor& x) {
  TARN_CHECK_AS(UnsupportedError, x.sizes()[1] < (int64_t{1} << 30), op,
                ": on cuda a row must have fewer than 2^30 numbers; got x=", x.describe());
  return static_cast<int>(x.sizes()[1]);
}

}  // namespace tarn::cuda
