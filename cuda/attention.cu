// attention.cu - fused attention: forward.
//
// A block makes the result of 64 queries (and 64 columns): it walks over tiles of 64 keys, makes
// the scores, keeps a running maximum and sum of exponentials per query, and adds tile times
// values. Scores never reach memory. f32 sums, f64 for f64; each sum has one fixed order. Bytes: q
// and out once, k and v once per tile of queries (from the L2 cache mostly); arithmetic 4 T S D per
// head bounds it. Source: Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
// arXiv:2205.14135.
#include "tarn/cuda/attention.h"
#include "tarn/cuda/attention_tile.cuh"
#include "tarn/cuda/table.h"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {
namespace {

/// Over the 16 threads that own parts of the same rows.
template <class C, class Combine>
__device__ __forceinline__ C over_row(C value, Combine combine) {
#pragma unroll
  for (int mask = kTile / kSub / 2; mask > 0; mask /= 2) {
    value = combine(value, shuffle_xor(value, mask));
  }
  return value;
}

struct Larger {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return a > b ? a : b;
  }
};

/// Scores to exponentials (with dropout) in `tile`; the running statistics and sums follow.
template <class C>
__device__ void take_exponentials(const AttentionShape& p, const TileWork& w, int t0, int k0,
                                  C (&s)[kSub][kSub], C (&max)[kSub], C (&sum)[kSub],
                                  C (&out)[kSub][kSub], ScoreTile<C>& tile) {
  const int row = thread_row(), column = thread_column();
  put_dropout_factors(p, w.b, w.h, t0, k0, tile);
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
    C most = max[i];
#pragma unroll
    for (int j = 0; j < kSub; ++j) {
      s[i][j] = masked_score(p, w.b, w.h, t0 + row + i, k0 + column + j, s[i][j]);
      most = Larger()(most, s[i][j]);
    }
    most = over_row(most, Larger());
    const C base = most == minus_infinity<C>() ? C(0) : most;
    C total = 0;
#pragma unroll
    for (int j = 0; j < kSub; ++j) {
      s[i][j] = math::exp(s[i][j] - base);
      total += s[i][j];
    }
    const C decay = math::exp(max[i] - base);
    sum[i] = sum[i] * decay + over_row(total, Sum());
    max[i] = most;
#pragma unroll
    for (int j = 0; j < kSub; ++j) {
      out[i][j] *= decay;
      C& weight = tile.at[row + i][column + j];
      weight = p.dropout > 0 ? s[i][j] * weight : s[i][j];
    }
  }
}

template <class T, class C = compute_t<T>>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<C>)
    attention_forward(AttentionShape p, Heads q, Heads k, Heads v, Heads out, C* logsumexp,
                      int64_t items) {
  __shared__ TileBuffers<C> buffers;
  TARN_DYNAMIC_SHARED(ScoreTile<C>, tile);
  const int tiles = (p.queries + kTile - 1) / kTile, chunks = (p.width + kTile - 1) / kTile;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const TileWork w(item, p.heads, tiles, chunks);
    const int t0 = w.tile * kTile, rows = min(kTile, p.queries - t0);
    const int64_t group = w.h / (p.heads / p.groups);
    const T* keys = k.at<T>(w.b, group);
    const T* values = v.at<T>(w.b, group);
    const LineLoader<T, C> a{q.at<T>(w.b, w.h) + t0 * q.row, q.row, rows, p.depth, C(p.scale)};
    C sums[kSub][kSub], max[kSub], sum[kSub];
    clear(sums);
#pragma unroll
    for (int i = 0; i < kSub; ++i) max[i] = minus_infinity<C>(), sum[i] = C(0);
    const int reach = p.causal ? min(p.keys, t0 + rows) : p.keys;
    for (int k0 = 0; k0 < reach; k0 += kTile) {
      const int count = min(kTile, p.keys - k0);
      C s[kSub][kSub];
      clear(s);
      multiply_tiles(buffers, p.depth, a,
                     LineLoader<T, C>{keys + k0 * k.row, k.row, count, p.depth, C(1)}, s);
      take_exponentials(p, w, t0, k0, s, max, sum, sums, *tile);
      __syncthreads();
      add_tile_product(buffers, *tile, values + k0 * v.row, v.row, count, w.chunk * kTile, p.width,
                       C(1), sums);
    }
    T* to = out.at<T>(w.b, w.h);
    const int row = thread_row(), column = w.chunk * kTile + thread_column();
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int t = t0 + row + i;
      if (t >= p.queries) continue;
      const bool dead = sum[i] == C(0);  // no key: else the largest term is 1
#pragma unroll
      for (int j = 0; j < kSub; ++j) {
        if (column + j < p.width) {
          to[t * out.row + column + j] = T(dead ? C(0) : sums[i][j] / sum[i]);
        }
      }
      if (column == 0) {
        logsumexp[(w.b * p.heads + w.h) * p.queries + t] =
            dead ? minus_infinity<C>() : max[i] + math::log(sum[i]);
      }
    }
  }
}

void scaled_dot_product_attention(const AttentionCall& call, const Tensor& out,
                                  const Tensor& logsumexp, Stream stream) {
  const AttentionShape p(call);
  visit_floating(call.q.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    const int64_t items = p.batch * p.heads * ceil_div(p.queries, kTile) * ceil_div(p.width, kTile);
    launch(attention_forward<T, C>, blocks_for(items, 1, stream), kTileThreads,
           sizeof(ScoreTile<C>), stream, p, Heads(call.q), Heads(call.k), Heads(call.v), Heads(out),
           static_cast<C*>(logsumexp.data()), items);
  });
}

}  // namespace

AttentionKernels own_attention_kernels() {
  return {scaled_dot_product_attention, scaled_dot_product_attention_backward};
}

void add_attention_kernels(KernelTable& table) {
  table.attention = own_attention_kernels();
}

}  // namespace tarn::cuda
