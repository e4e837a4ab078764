// elementwise.cuh - the kernel of all elementwise operators: one pass, 16 bytes at a time.
//
// A thread computes kElements results at once: it loads everything, computes, stores, so that
// several loads are in flight. A block's share of the walk is a tile; tiles are of two kinds:
//   wide     Neighbours along dimension 0 are moved as vectors of kWidth elements, 16 bytes for the
//            widest operand. An operand that does not move along dimension 0 (a scalar, a column)
//            is read once per vector.
//   scattered  Each element is fetched by its own offset, neighbours by neighbouring threads.
// The host decides (make_walk): dense operands of equal alignment go wide but for a few elements at
// both ends; so do rows whose length and strides are multiples of kWidth (a bias, a slice);
// everything else is scattered. Both kinds share the arithmetic, so an operator is compiled once
// for each type. Traffic: every operand once, the sum of their element sizes per element.
//
// A kernel is described by a functor F with static R call(C... inputs, const Scalars&); halves are
// computed in float and rounded once. Kernels of one number of operands have one C++ type, hence
// can stand in tables.
#pragma once

#include <type_traits>

#include "tarn/core/elementwise_base.h"
#include "tarn/core/plan.h"
#include "tarn/cuda/offsets.cuh"
#include "tarn/cuda/rt.h"
#include "tarn/cuda/vec.cuh"

namespace tarn::cuda {

inline constexpr int kElementwiseThreads = 256;

/// Elements a thread computes at once, and how many of them make one vector, when the widest
/// operand has elements of `widest` bytes.
constexpr int elements_per_thread(int64_t widest) {
  return widest == 8 ? 4 : 8;
}
constexpr int vector_width(int64_t widest) {
  return widest == 1 ? 8 : static_cast<int>(16 / widest);
}

/// What a kernel of N operands (the output first) walks. Elements [head, head + vectors * width)
/// are done by the first wide_tiles tiles, the `rest` others by the remaining tiles.
template <int N>
struct ElementwiseWalk {
  void* data[N];
  StridedWalk<N> steps;
  uint32_t head = 0;
  uint32_t vectors = 0;
  uint32_t rest = 0;
  uint32_t wide_tiles = 0;
  uint32_t tiles = 0;
};

template <int N>
using ElementwiseKernel = void (*)(ElementwiseWalk<N>, Scalars);

/// Offsets of kCount places of a walk at once, for the first kCount rows of `at`.
template <int kCount, int kRows, int N>
__device__ __forceinline__ void find_offsets(const StridedWalk<N>& steps, uint32_t (&place)[kRows],
                                             uint32_t (&at)[kRows][N]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int i = 0; i < N; ++i) at[k][i] = 0;
  }
#pragma unroll 1
  for (int d = 0; d + 1 < steps.ndim; ++d) {
    const FastDivisor size = steps.sizes[d];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const uint32_t next = size.divide(place[k]);
      const uint32_t index = place[k] - next * size.divisor;
      place[k] = next;
#pragma unroll
      for (int i = 0; i < N; ++i) at[k][i] += index * steps.strides[d][i];
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int i = 0; i < N; ++i) at[k][i] += place[k] * steps.strides[steps.ndim - 1][i];
  }
}

/// This thread's elements of operand I: vectors, one value for each vector, or single elements.
template <int I, int kWidth, class T, int kElements, int N>
__device__ __forceinline__ void load_operand(const ElementwiseWalk<N>& walk,
                                             const uint32_t (&at)[kElements][N], bool wide,
                                             T (&x)[kElements]) {
  const T* const p = static_cast<const T*>(walk.data[I]);
  if (!wide) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) x[e] = p[at[e][I]];
  } else if (walk.steps.strides[0][I] == 0) {
#pragma unroll
    for (int k = 0; k < kElements / kWidth; ++k) {
      const T value = p[at[k][I]];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[k * kWidth + j] = value;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kElements / kWidth; ++k) {
      const Vec<T, kWidth> v = load_vec<kWidth>(p + at[k][I]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[k * kWidth + j] = v.v[j];
    }
  }
}

/// out: R. Inputs: the first one A, the others T, kInputs of them (at most 3).
template <class F, class R, class A, class T, int kInputs>
__global__ void __launch_bounds__(kElementwiseThreads)
    elementwise_kernel(const ElementwiseWalk<kInputs + 1> walk, const Scalars s) {
  constexpr int kWidest =
      static_cast<int>(sizeof(R) > sizeof(A) ? (sizeof(R) > sizeof(T) ? sizeof(R) : sizeof(T))
                                             : (sizeof(A) > sizeof(T) ? sizeof(A) : sizeof(T)));
  constexpr int kElements = elements_per_thread(kWidest);
  constexpr int kWidth = vector_width(kWidest);
  constexpr int kVectors = kElements / kWidth;
  using CA = compute_t<A>;
  using C = compute_t<T>;
  for (uint32_t tile = blockIdx.x; tile < walk.tiles; tile += gridDim.x) {
    const bool wide = tile < walk.wide_tiles;
    // Places this thread works on: `count` vectors or elements, a block's width apart. Beyond the
    // end its first one is repeated and not stored: to read another thread's, which may be writing
    // it (in place), would be a race.
    uint32_t place[kElements], at[kElements][kInputs + 1];
    const uint32_t count = wide ? walk.vectors : walk.rest;
    const uint32_t first =
        (wide ? tile * kVectors : (tile - walk.wide_tiles) * kElements) * kElementwiseThreads +
        threadIdx.x;
    if (first >= count) continue;
    if (wide) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const uint32_t next = first + k * kElementwiseThreads;
        place[k] = walk.head + (next < count ? next : first) * kWidth;
      }
      find_offsets<kVectors>(walk.steps, place, at);
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const uint32_t next = first + e * kElementwiseThreads;
        const uint32_t i = next < count ? next : first;
        place[e] = i < walk.head ? i : i + walk.vectors * kWidth;
      }
      find_offsets<kElements>(walk.steps, place, at);
    }

    [[maybe_unused]] A a[kElements];
    [[maybe_unused]] T b[kElements], c[kElements];
    if constexpr (kInputs > 0) load_operand<1, kWidth>(walk, at, wide, a);
    if constexpr (kInputs > 1) load_operand<2, kWidth>(walk, at, wide, b);
    if constexpr (kInputs > 2) load_operand<3, kWidth>(walk, at, wide, c);
    R y[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if constexpr (kInputs == 0) {
        y[e] = F::template call<R>(s);
      } else if constexpr (kInputs == 1) {
        y[e] = static_cast<R>(F::call(static_cast<CA>(a[e]), s));
      } else if constexpr (kInputs == 2) {
        y[e] = static_cast<R>(F::call(static_cast<CA>(a[e]), static_cast<C>(b[e]), s));
      } else {
        y[e] = static_cast<R>(
            F::call(static_cast<CA>(a[e]), static_cast<C>(b[e]), static_cast<C>(c[e]), s));
      }
    }

    R* const out = static_cast<R*>(walk.data[0]);
    if (wide) {
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        Vec<R, kWidth> v;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v.v[j] = y[k * kWidth + j];
        if (first + k * kElementwiseThreads < count) store_vec(out + at[k][0], v);
      }
    } else {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (first + e * kElementwiseThreads < count) out[at[e][0]] = y[e];
      }
    }
  }
}

}  // namespace tarn::cuda
