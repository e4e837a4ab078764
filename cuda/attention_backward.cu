// attention_backward.cu - fused attention: gradients.
//
// With delta = sum(gout * out) per query, P from the saved log-sum-exp and dP = gout v^T:
//   dS = P (dP - delta),  gv = P^T gout,  gk = dS^T q,  gq = dS k.
// One kernel makes gq (a block per 64 queries), another gk and gv (a block per 64 keys, over all
// queries of the heads that share them): nothing is added across blocks, so every sum has one order
// and no atomics are needed, for the price of making the scores twice.
// Bytes: as forward, twice over; arithmetic 14 T S D per head bounds it.
// Source: Dao et al. 2022, arXiv:2205.14135, algorithm 4.
#include "tarn/cuda/attention.h"
#include "tarn/cuda/attention_tile.cuh"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {
namespace {

/// What both kernels read.
template <class C>
struct BackwardInputs {
  Heads q, k, v, gout;
  const C* logsumexp;  ///< [B, H, T]
  const C* delta;
};

/// delta[b, h, t] = sum(gout * out); a warp per row.
template <class T, class C = compute_t<T>>
__global__ void attention_delta(AttentionShape p, Heads out, Heads gout, C* delta, int64_t rows) {
  const int64_t warps = grid_step() / kWarp;
  for (int64_t r = grid_index() / kWarp; r < rows; r += warps) {
    const int64_t t = r % p.queries, h = r / p.queries % p.heads, b = r / p.queries / p.heads;
    const T* x = out.at<T>(b, h) + t * out.row;
    const T* g = gout.at<T>(b, h) + t * gout.row;
    C sum = 0;
    for (int i = lane_id(); i < p.width; i += kWarp) {
      sum += static_cast<C>(x[i]) * static_cast<C>(g[i]);
    }
    sum = warp_reduce(sum, Sum());
    if (lane_id() == 0) delta[r] = sum;
  }
}

/// The probability of (t, key) from its score; 0 in rows without keys.
template <class C>
__device__ __forceinline__ C probability(const AttentionShape& p, int64_t b, int64_t h, int t,
                                         int key, C score, const C* logsumexp) {
  if (t >= p.queries) return C(0);
  const C norm = logsumexp[t];
  if (norm == minus_infinity<C>()) return C(0);
  return math::exp(masked_score(p, b, h, t, key, score) - norm);
}

template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<C>)
    attention_query_gradient(AttentionShape p, BackwardInputs<C> in, Heads gq, int64_t items) {
  __shared__ TileBuffers<C> buffers;
  TARN_DYNAMIC_SHARED(ScoreTile<C>, tile);
  const int tiles = (p.queries + kTile - 1) / kTile, chunks = (p.depth + kTile - 1) / kTile;
  const int row = thread_row(), column = thread_column();
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const TileWork w(item, p.heads, tiles, chunks);
    const int t0 = w.tile * kTile, rows = min(kTile, p.queries - t0);
    const int64_t group = w.h / (p.heads / p.groups);
    const int64_t first = (w.b * p.heads + w.h) * p.queries;
    const T* keys = in.k.template at<T>(w.b, group);
    const T* values = in.v.template at<T>(w.b, group);
    const T* queries = in.q.template at<T>(w.b, w.h) + t0 * in.q.row;
    const T* gradients = in.gout.template at<T>(w.b, w.h) + t0 * in.gout.row;
    C sums[kSub][kSub];
    clear(sums);
    const int reach = p.causal ? min(p.keys, t0 + rows) : p.keys;
    for (int k0 = 0; k0 < reach; k0 += kTile) {
      const int count = min(kTile, p.keys - k0);
      C s[kSub][kSub], g[kSub][kSub];
      clear(s);
      clear(g);
      multiply_tiles(buffers, p.depth,
                     LineLoader<T, C>{queries, in.q.row, rows, p.depth, C(p.scale)},
                     LineLoader<T, C>{keys + k0 * in.k.row, in.k.row, count, p.depth, C(1)}, s);
      multiply_tiles(buffers, p.width,
                     LineLoader<T, C>{gradients, in.gout.row, rows, p.width, C(1)},
                     LineLoader<T, C>{values + k0 * in.v.row, in.v.row, count, p.width, C(1)}, g);
      put_dropout_factors(p, w.b, w.h, t0, k0, *tile);
#pragma unroll
      for (int i = 0; i < kSub; ++i) {
        const int t = t0 + row + i;
        const C delta = t < p.queries ? in.delta[first + t] : C(0);
#pragma unroll
        for (int j = 0; j < kSub; ++j) {
          const int key = k0 + column + j;
          const C weight = probability(p, w.b, w.h, t, key, s[i][j], in.logsumexp + first);
          C& at = tile->at[row + i][column + j];
          at = weight * (g[i][j] * (p.dropout > 0 ? at : C(1)) - delta);
        }
      }
      __syncthreads();
      add_tile_product(buffers, *tile, keys + k0 * in.k.row, in.k.row, count, w.chunk * kTile,
                       p.depth, C(1), sums);
    }
    T* to = gq.at<T>(w.b, w.h);
    const int d = w.chunk * kTile + column;
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
#pragma unroll
      for (int j = 0; j < kSub; ++j) {
        const int t = t0 + row + i;
        if (t < p.queries && d + j < p.depth) {
          to[t * gq.row + d + j] = T(sums[i][j] * C(p.scale));
        }
      }
    }
  }
}

/// This thread's part of a tile.
template <class C>
__device__ __forceinline__ void put(const C (&values)[kSub][kSub], ScoreTile<C>& tile) {
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
#pragma unroll
    for (int j = 0; j < kSub; ++j) tile.at[thread_row() + i][thread_column() + j] = values[i][j];
  }
}

/// Scores of 64 keys (rows) and 64 queries (columns) to P with dropout, and dP to dS; each thread
/// its own elements. They lie in shared memory because the two sums need the registers.
template <class C>
__device__ void differentiate(const AttentionShape& p, int64_t b, int64_t h, int k0, int t0,
                              const C* logsumexp, const C* delta, ScoreTile<C>& weights,
                              ScoreTile<C>& gradients) {
#pragma unroll 1
  for (int j = 0; j < kSub; ++j) {
    const int column = thread_column() + j, t = t0 + column;
    const C subtract = t < p.queries ? delta[t] : C(0);
    C kept[kSub] = {C(1), C(1), C(1), C(1)};
    if (p.dropout > 0) dropout_factors(p, b, h, t, k0 + thread_row(), kept);
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int row = thread_row() + i;
      C &score = weights.at[row][column], &gradient = gradients.at[row][column];
      const C weight = probability(p, b, h, t, k0 + row, score, logsumexp);
      score = weight * kept[i];
      gradient = weight * (gradient * kept[i] - subtract);
    }
  }
}

template <class T, class C>
__device__ void store_chunk(const Heads& to, int64_t b, int64_t h, int first, int lines, int chunk,
                            int width, const C (&sums)[kSub][kSub]) {
  T* data = to.at<T>(b, h);
  const int column = chunk * kTile + thread_column();
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
    const int line = first + thread_row() + i;
#pragma unroll
    for (int j = 0; j < kSub; ++j) {
      if (line < lines && column + j < width) data[line * to.row + column + j] = T(sums[i][j]);
    }
  }
}

template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<C>)
    attention_key_gradient(AttentionShape p, BackwardInputs<C> in, Heads gk, Heads gv,
                           int64_t items) {
  __shared__ TileBuffers<C> buffers;
  TARN_DYNAMIC_SHARED(ScoreTile<C>, shared_tiles);
  ScoreTile<C>&weights = shared_tiles[0], &gradients = shared_tiles[1];
  const int tiles = (p.keys + kTile - 1) / kTile;
  const int chunks = (max(p.depth, p.width) + kTile - 1) / kTile;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const TileWork w(item, p.groups, tiles, chunks);
    const int k0 = w.tile * kTile, count = min(kTile, p.keys - k0);
    const T* keys = in.k.template at<T>(w.b, w.h) + k0 * in.k.row;
    const T* values = in.v.template at<T>(w.b, w.h) + k0 * in.v.row;
    C sum_k[kSub][kSub], sum_v[kSub][kSub];
    clear(sum_k);
    clear(sum_v);
    const int per_group = static_cast<int>(p.heads / p.groups);
    const int start = p.causal ? k0 : 0;  // k0 is the first query that sees these keys
    for (int64_t h = w.h * per_group; h < (w.h + 1) * per_group; ++h) {
      const int64_t first = (w.b * p.heads + h) * p.queries;
      for (int t0 = start; t0 < p.queries; t0 += kTile) {
        const int rows = min(kTile, p.queries - t0);
        const T* queries = in.q.template at<T>(w.b, h) + t0 * in.q.row;
        const T* gouts = in.gout.template at<T>(w.b, h) + t0 * in.gout.row;
        C part[kSub][kSub];
        clear(part);
        multiply_tiles(buffers, p.depth, LineLoader<T, C>{keys, in.k.row, count, p.depth, C(1)},
                       LineLoader<T, C>{queries, in.q.row, rows, p.depth, C(p.scale)}, part);
        put(part, weights);
        clear(part);
        multiply_tiles(buffers, p.width, LineLoader<T, C>{values, in.v.row, count, p.width, C(1)},
                       LineLoader<T, C>{gouts, in.gout.row, rows, p.width, C(1)}, part);
        put(part, gradients);
        differentiate(p, w.b, h, k0, t0, in.logsumexp + first, in.delta + first, weights,
                      gradients);
        __syncthreads();
        add_tile_product(buffers, weights, gouts, in.gout.row, rows, w.chunk * kTile, p.width, C(1),
                         sum_v);
        add_tile_product(buffers, gradients, queries, in.q.row, rows, w.chunk * kTile, p.depth,
                         C(p.scale), sum_k);
      }
    }
    store_chunk<T>(gk, w.b, w.h, k0, p.keys, w.chunk, p.depth, sum_k);
    store_chunk<T>(gv, w.b, w.h, k0, p.keys, w.chunk, p.width, sum_v);
  }
}

}  // namespace

void scaled_dot_product_attention_backward(const AttentionCall& call, const Tensor& out,
                                           const Tensor& logsumexp, const Tensor& gout,
                                           const Tensor& gq, const Tensor& gk, const Tensor& gv,
                                           Stream stream) {
  const AttentionShape p(call);
  visit_floating(call.q.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    const int64_t rows = p.batch * p.heads * p.queries;
    const Scratch delta(static_cast<size_t>(rows) * sizeof(C), stream);
    constexpr int kDeltaThreads = 256;
    launch(attention_delta<T, C>, blocks_for(rows, kDeltaThreads / kWarp, stream), kDeltaThreads, 0,
           stream, p, Heads(out), Heads(gout), delta.as<C>(), rows);
    const BackwardInputs<C> in{Heads(call.q),
                               Heads(call.k),
                               Heads(call.v),
                               Heads(gout),
                               static_cast<const C*>(logsumexp.data()),
                               delta.as<C>()};
    const int64_t query_items =
        p.batch * p.heads * ceil_div(p.queries, kTile) * ceil_div(p.depth, kTile);
    launch(attention_query_gradient<T, C>, blocks_for(query_items, 1, stream), kTileThreads,
           sizeof(ScoreTile<C>), stream, p, in, Heads(gq), query_items);
    const int64_t key_items =
        p.batch * p.groups * ceil_div(p.keys, kTile) * ceil_div(std::max(p.depth, p.width), kTile);
    launch(attention_key_gradient<T, C>, blocks_for(key_items, 1, stream), kTileThreads,
           2 * sizeof(ScoreTile<C>), stream, p, in, Heads(gk), Heads(gv), key_items);
  });
}

}  // namespace tarn::cuda
