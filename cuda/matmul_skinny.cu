// matmul_skinny.cu - products where one side has at most 8 rows: a matrix times a few vectors.
//
// Bound by reading the wide operand W [l, k] once; the narrow one X [s, k], s <= 8, comes from the
// caches. Two forms, by the order of W in memory:
//   along k: a warp takes a row of W, its lanes stride over k with 16-byte loads, and the lanes'
//            sums meet in a butterfly of shuffles.
//   across:  a block takes 32 rows of W, neighbours in memory; 8 groups of 32 threads each take
//            every 8th step of k, and their sums meet in shared memory.
// Both have a fixed order, and cut a long k into parts (see matmul.cu) where there are few rows.
#include "tarn/cuda/matmul_finish.cuh"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/vec.cuh"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int64_t kWantedBlocks = 528;  // four for each multiprocessor of an H200
constexpr int64_t kLeastDepth = 1024;

/// The product with its sides named by width: C[s, l] = X[s, :] . W[l, :].
struct Skinny {
  MatmulCall call;
  const void* wide;
  const void* narrow;
  int64_t l, wide_batch, wide_l, wide_k;
  int64_t narrow_batch, narrow_s, narrow_k;
  int s;
  bool bias_by_l;  // the bias belongs to columns of C
  bool vectors;    // 16-byte loads along k are aligned
  int64_t parts;
};

template <class T>
__device__ __forceinline__ const T* wide_row(const Skinny& g, int64_t batch, int64_t l) {
  return static_cast<const T*>(g.wide) + batch * g.wide_batch + l * g.wide_l;
}
template <class T>
__device__ __forceinline__ const T* narrow_side(const Skinny& g, int64_t batch) {
  return static_cast<const T*>(g.narrow) + batch * g.narrow_batch;
}

/// One sum to C, or to its place in [parts, batch, m, n].
template <class T>
__device__ void write_sum(const Skinny& g, int64_t part, int64_t batch, int64_t l, int s,
                          sum_t<T> sum, sum_t<T>* partial) {
  const int64_t row = g.bias_by_l ? s : l, col = g.bias_by_l ? l : s;
  if (partial != nullptr) {
    partial[((part * g.call.batch + batch) * g.call.m + row) * g.call.n + col] = sum;
    return;
  }
  T* c = static_cast<T*>(g.call.c) + batch * g.call.c_batch + row * g.call.c_row + col;
  const T* bias = static_cast<const T*>(g.call.bias);
  *c = finish(g.call, sum, c, bias ? bias + col : nullptr);
}

/// sums[s] += X[s, k] W[k] over one lane's share of [begin, end).
template <class T, int kMost>
__device__ void dot_lane(const Skinny& g, const T* wide, const T* narrow, int64_t begin,
                         int64_t end, sum_t<T> (&sums)[kMost]) {
  using A = sum_t<T>;
  constexpr int kWidth = kVecWidth<T>;
  int64_t k = begin;
  if (g.vectors) {
    for (; k + kWarp * kWidth <= end; k += kWarp * kWidth) {
      const int64_t at = k + lane_id() * kWidth;
      const Vec<T, kWidth> w = load_vec<kWidth>(wide + at);
#pragma unroll
      for (int s = 0; s < kMost; ++s) {
        if (s >= g.s) break;
        const Vec<T, kWidth> x = load_vec<kWidth>(narrow + s * g.narrow_s + at);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sums[s] += static_cast<A>(w.v[i]) * static_cast<A>(x.v[i]);
      }
    }
  }
  for (k += lane_id(); k < end; k += kWarp) {
    const A w = static_cast<A>(wide[k]);
#pragma unroll
    for (int s = 0; s < kMost; ++s) {
      if (s < g.s) sums[s] += w * static_cast<A>(narrow[s * g.narrow_s + k * g.narrow_k]);
    }
  }
}

template <class T, int kMost>
__global__ void __launch_bounds__(kThreads) skinny_along_k(const Skinny g, sum_t<T>* partial) {
  using A = sum_t<T>;
  constexpr int64_t kWidth = kVecWidth<T>;
  const int64_t tasks = g.l * g.call.batch * g.parts;
  const int64_t stride = int64_t{kWarps} * gridDim.x;
  for (int64_t task = int64_t{kWarps} * blockIdx.x + warp_id(); task < tasks; task += stride) {
    const int64_t l = task % g.l, batch = task / g.l % g.call.batch;
    const int64_t part = task / g.l / g.call.batch;
    // Parts begin at multiples of a vector, so that their loads stay aligned.
    const int64_t vectors = g.call.k / kWidth;
    const int64_t begin = vectors * part / g.parts * kWidth;
    const int64_t end = part + 1 == g.parts ? g.call.k : vectors * (part + 1) / g.parts * kWidth;
    A sums[kMost] = {};
    dot_lane<T, kMost>(g, wide_row<T>(g, batch, l), narrow_side<T>(g, batch), begin, end, sums);
#pragma unroll
    for (int s = 0; s < kMost; ++s) {
      if (s >= g.s) break;
      const A sum = warp_reduce(sums[s], Sum{});
      if (lane_id() == 0) write_sum<T>(g, part, batch, l, s, sum, partial);
    }
  }
}

template <class T, int kMost>
__global__ void __launch_bounds__(kThreads) skinny_across(const Skinny g, sum_t<T>* partial) {
  using A = sum_t<T>;
  __shared__ A shared[kWarps][kMost][kWarp];
  const int64_t row_tiles = ceil_div(g.l, kWarp), tasks = row_tiles * g.call.batch * g.parts;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t l = task % row_tiles * kWarp + lane_id();
    const int64_t batch = task / row_tiles % g.call.batch, part = task / row_tiles / g.call.batch;
    const int64_t begin = g.call.k * part / g.parts, end = g.call.k * (part + 1) / g.parts;
    const T* wide = wide_row<T>(g, batch, l < g.l ? l : g.l - 1);
    const T* narrow = narrow_side<T>(g, batch);
    A sums[kMost] = {};
#pragma unroll 2
    for (int64_t k = begin + warp_id(); k < end; k += kWarps) {
      const A w = static_cast<A>(wide[k * g.wide_k]);
#pragma unroll
      for (int s = 0; s < kMost; ++s) {
        if (s < g.s) sums[s] += w * static_cast<A>(narrow[s * g.narrow_s + k * g.narrow_k]);
      }
    }
    __syncthreads();  // the task before has read
#pragma unroll
    for (int s = 0; s < kMost; ++s) shared[warp_id()][s][lane_id()] = sums[s];
    __syncthreads();
    if (warp_id() < g.s && l < g.l) {  // warp s adds up what belongs to row s of X
      A sum = A(0);
      for (int group = 0; group < kWarps; ++group) sum += shared[group][warp_id()][lane_id()];
      write_sum<T>(g, part, batch, l, warp_id(), sum, partial);
    }
  }
}

template <class T, int kMost>
void run_skinny(Skinny g, Stream stream) {
  constexpr int64_t kLeastAlong = 2 * kWarp;  // shorter rows leave lanes without work
  const bool along = g.wide_k == 1 && g.call.k >= kLeastAlong;
  const int64_t tiles = ceil_div(g.l, along ? kWarps : kWarp) * g.call.batch;
  g.parts = parts_of_k(tiles, g.call.k, kWantedBlocks, kLeastDepth);
  g.vectors = g.narrow_k == 1 && is_aligned(g.wide, 16) && is_aligned(g.narrow, 16);
  for (const int64_t stride : {g.wide_l, g.wide_batch, g.narrow_s, g.narrow_batch}) {
    g.vectors = g.vectors && stride % kVecWidth<T> == 0;
  }
  const unsigned blocks = along ? blocks_for(g.l * g.call.batch * g.parts, kWarps, stream)
                                : blocks_for(tiles * g.parts, 1, stream);
  const auto kernel = along ? skinny_along_k<T, kMost> : skinny_across<T, kMost>;
  if (g.parts == 1) {
    launch(kernel, blocks, kThreads, 0, stream, g, nullptr);
    return;
  }
  const int64_t elements = g.parts * g.call.batch * g.call.m * g.call.n;
  const Scratch partial(static_cast<size_t>(elements) * sizeof(sum_t<T>), stream);
  launch(kernel, blocks, kThreads, 0, stream, g, partial.as<sum_t<T>>());
  finish_parts(g.call, g.parts, partial.as<void>(), stream);
}

}  // namespace

void skinny_matmul(const MatmulCall& call, Stream stream) {
  const bool few_rows = call.m <= call.n;
  Skinny g = {};
  g.call = call;
  g.bias_by_l = few_rows;
  if (few_rows) {
    g.wide = call.b, g.l = call.n, g.s = static_cast<int>(call.m);
    g.wide_batch = call.b_batch, g.wide_l = call.b_col, g.wide_k = call.b_row;
    g.narrow = call.a;
    g.narrow_batch = call.a_batch, g.narrow_s = call.a_row, g.narrow_k = call.a_col;
  } else {
    g.wide = call.a, g.l = call.m, g.s = static_cast<int>(call.n);
    g.wide_batch = call.a_batch, g.wide_l = call.a_row, g.wide_k = call.a_col;
    g.narrow = call.b;
    g.narrow_batch = call.b_batch, g.narrow_s = call.b_col, g.narrow_k = call.b_row;
  }
  visit_floating(call.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (g.s == 1) {
      run_skinny<T, 1>(g, stream);
    } else {
      run_skinny<T, static_cast<int>(kSkinny)>(g, stream);
    }
  });
}

}  // namespace tarn::cuda
