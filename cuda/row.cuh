// row.cuh - a part of a warp, a warp or a block over the elements of a row, and the softmax
// statistics of one.
#pragma once

#include "tarn/core/cast.h"
#include "tarn/core/math.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/vec.cuh"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {

inline constexpr int kRowBlock = 256;  // threads

/// Threads that share a row of n elements: some lanes of a warp for the shortest rows (of ten
/// classes, say), a warp for short ones, a block for long ones.
inline int row_threads(int64_t n) {
  if (n <= 64) return n <= 32 ? kWarp / 4 : kWarp / 2;
  return n <= 1024 ? kWarp : kRowBlock;
}

/// This thread's place among the rows: for (row = first; row < rows; row += step).
struct RowPlace {
  int group, thread;
  int64_t first, step;

  __device__ __forceinline__ explicit RowPlace(int group_in)
      : group(group_in), thread(static_cast<int>(threadIdx.x) % group_in) {
    const int groups = kRowBlock / group;
    first = static_cast<int64_t>(blockIdx.x) * groups + threadIdx.x / group;
    step = static_cast<int64_t>(gridDim.x) * groups;
  }
};

/// combine over the threads of a row, in each of them. `shared` holds 32 elements.
template <class T, class Combine>
__device__ __forceinline__ T reduce_row(const T& value, const T& identity, int group, T* shared,
                                        Combine combine) {
  return group <= kWarp ? group_reduce(value, group, combine)
                        : block_reduce(value, identity, shared, combine);
}

/// True if rows of n elements at these bases are misaligned alike, so that 16-byte accesses can go
/// through both.
template <class T>
inline bool alike(const T* a, const T* b) {
  return (reinterpret_cast<uintptr_t>(a) - reinterpret_cast<uintptr_t>(b)) % 16 == 0;
}

/// What for_row reads: one row, or two alike.
template <class T>
struct OneRow {
  using Element = T;
  const T* row;
  template <int N>
  __device__ __forceinline__ Vec<T, N> at(int64_t i) const {
    return load_vec<N>(row + i);
  }
};
template <class T, int N>
struct VecPair {
  static constexpr int kCount = N;
  Vec<T, N> a, b;
};
template <class T>
struct TwoRows {
  using Element = T;
  const T *row, *other;
  template <int N>
  __device__ __forceinline__ VecPair<T, N> at(int64_t i) const {
    return {load_vec<N>(row + i), load_vec<N>(other + i)};
  }
};

/// Calls f(rows.at<N>(first), first) until all n elements were seen, N being kVecWidth in the
/// aligned middle, 1 before and after it. Not `vectors`: N is 1 throughout. Two loads are under way
/// before either is used.
template <class Rows, class F>
__device__ __forceinline__ void for_row(const Rows& rows, int64_t n, int thread, int threads,
                                        bool vectors, F&& f) {
  using T = typename Rows::Element;
  constexpr int N = kVecWidth<T>, kBatch = 2;
  const int off = static_cast<int>(reinterpret_cast<uintptr_t>(rows.row) / sizeof(T) % N);
  const int64_t head = vectors ? min(n, static_cast<int64_t>(off == 0 ? 0 : N - off)) : 0;
  const int64_t end = vectors ? head + (n - head) / N * N : 0;
  const int64_t step = int64_t{threads} * N;
#pragma unroll 1
  for (int64_t i = head + int64_t{thread} * N; i < end; i += kBatch * step) {
    decltype(rows.template at<N>(0)) batch[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (i + k * step < end) batch[k] = rows.template at<N>(i + k * step);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (i + k * step < end) f(batch[k], i + k * step);
    }
  }
  for (int64_t single = thread; single < head + n - end; single += threads) {
    const int64_t i = single < head ? single : single - head + end;
    f(rows.template at<1>(i), i);
  }
}

/// Maximum and sum of exp(x - maximum), found together in one pass: a larger maximum scales what
/// was summed (Milakov and Gimelshein 2018, arXiv:1805.02867). NaN if any element is, or +infinity
/// is there.
template <class A>
struct MaxSum {
  A max, sum;

  __device__ static MaxSum none() { return {-std::numeric_limits<A>::infinity(), A(0)}; }

  template <class T, int N>
  __device__ __forceinline__ void add(const Vec<T, N>& x) {
    A top = cast_value<A>(x.v[0]);
#pragma unroll
    for (int i = 1; i < N; ++i) top = Max()(top, cast_value<A>(x.v[i]));
    if (top > max || top != top) {
      sum *= math::exp(max - top);  // 0 * exp(-inf) at first
      max = top;
    }
    if (max == -std::numeric_limits<A>::infinity()) return;  // nothing but -infinity so far
#pragma unroll
    for (int i = 0; i < N; ++i) sum += math::exp(cast_value<A>(x.v[i]) - max);
  }
};

/// Symmetric to the bit.
struct JoinMaxSum {
  template <class A>
  __device__ MaxSum<A> operator()(const MaxSum<A>& a, const MaxSum<A>& b) const {
    const bool a_first = a.max >= b.max || a.max != a.max;
    const MaxSum<A> high = a_first ? a : b, low = a_first ? b : a;
    if (high.max == -std::numeric_limits<A>::infinity()) return high;
    return {high.max, low.sum * math::exp(low.max - high.max) + high.sum};
  }
};

}  // namespace tarn::cuda
