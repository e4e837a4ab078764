// attention_tile.cuh - what the attention kernels share: the problem in numbers, loaders of
// operands for the tile product, masked scores and dropout's factors.
//
// All three passes are made of products of 64 x 64 tiles (conv_tile.cuh), with a tile of
// probabilities in shared memory between two of them. A result wider than 64 columns is made in
// chunks by blocks of their own, which make the scores again.
#pragma once

#include "tarn/core/kernels/attention.h"
#include "tarn/core/math.h"
#include "tarn/core/random_draws.h"
#include "tarn/cuda/conv_tile.cuh"

namespace tarn::cuda {

/// One of the tensors [B, H, N, D], last dimension dense.
struct Heads {
  void* data;
  int64_t batch, head, row;  ///< strides

  explicit Heads(const Tensor& x)
      : data(x.data()), batch(x.strides()[0]), head(x.strides()[1]), row(x.strides()[2]) {}
  template <class T>
  __device__ T* at(int64_t b, int64_t h) const {
    return static_cast<T*>(data) + b * batch + h * head;
  }
};

struct AttentionShape {
  int64_t batch, heads, groups;
  int queries, keys, depth, width;  ///< T, S, D, E
  bool causal;
  double scale;
  const void* mask;  ///< null: none
  bool mask_is_bool;
  int64_t mask_batch, mask_head, mask_row, mask_key;
  double dropout;
  PhiloxState state;

  explicit AttentionShape(const AttentionCall& c)
      : batch(c.q.size(0)),
        heads(c.q.size(1)),
        groups(c.k.size(1)),
        queries(static_cast<int>(c.q.size(2))),
        keys(static_cast<int>(c.k.size(2))),
        depth(static_cast<int>(c.q.size(3))),
        width(static_cast<int>(c.v.size(3))),
        causal(c.causal),
        scale(c.scale),
        mask(c.mask.data_or_null()),
        mask_is_bool(c.mask.defined() && c.mask.dtype() == DType::kBool),
        mask_batch(c.mask.defined() ? c.mask.strides()[0] : 0),
        mask_head(c.mask.defined() ? c.mask.strides()[1] : 0),
        mask_row(c.mask.defined() ? c.mask.strides()[2] : 0),
        mask_key(c.mask.defined() ? c.mask.strides()[3] : 0),
        dropout(c.dropout),
        state(c.state) {}
};

template <class C>
__device__ __forceinline__ C minus_infinity() {
  return -std::numeric_limits<C>::infinity();
}

/// The scaled score of (t, key) with its mask; -inf where the query does not attend.
template <class C>
__device__ __forceinline__ C masked_score(const AttentionShape& p, int64_t b, int64_t h, int t,
                                          int key, C score) {
  if (t >= p.queries || key >= p.keys || (p.causal && key > t)) return minus_infinity<C>();
  if (p.mask == nullptr) return score;
  const int64_t at = b * p.mask_batch + h * p.mask_head + t * p.mask_row + key * p.mask_key;
  if (p.mask_is_bool) return static_cast<const bool*>(p.mask)[at] ? score : minus_infinity<C>();
  return score + static_cast<const C*>(p.mask)[at];
}

/// Lines of `depth` elements, `stride` apart, times a factor.
template <class T, class C>
struct LineLoader {
  using Order = DepthFastest;
  const T* from;
  int64_t stride;
  int lines, depth;
  C factor;

  __device__ void load(int first, C (&out)[kSub]) const {
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int line = Order::line(i), d = first + Order::depth(i);
      out[i] = line < lines && d < depth ? static_cast<C>(from[line * stride + d]) * factor : C(0);
    }
  }
};

/// The same matrix the other way: element (line, d) is row d, column `line` of the memory.
template <class T, class C>
struct CrossLoader {
  using Order = LineFastest;
  const T* from;
  int64_t stride;
  int lines, depth;
  C factor;

  __device__ void load(int first, C (&out)[kSub]) const {
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int line = Order::line(i), d = first + Order::depth(i);
      out[i] = line < lines && d < depth ? static_cast<C>(from[d * stride + line]) * factor : C(0);
    }
  }
};

/// A tile of probabilities or their gradients, rows as the threads that made it own them.
template <class C>
struct ScoreTile {
  C at[kTile][kTile + 1];
};

template <class C>
struct TileLoader {
  using Order = DepthFastest;
  const ScoreTile<C>* tile;

  __device__ void load(int first, C (&out)[kSub]) const {
#pragma unroll
    for (int i = 0; i < kSub; ++i) out[i] = tile->at[Order::line(i)][first + Order::depth(i)];
  }
};

/// This thread's first row and column in a tile.
__device__ __forceinline__ int thread_row() {
  return static_cast<int>(threadIdx.x) / (kTile / kSub) * kSub;
}
__device__ __forceinline__ int thread_column() {
  return static_cast<int>(threadIdx.x) % (kTile / kSub) * kSub;
}

/// 1 / (1 - p) where dropout keeps the probability of (t, key + j), else 0. A turn of the generator
/// makes the numbers of four keys, so one will do where rows are whole groups of four, else two.
template <class C>
__device__ __forceinline__ void dropout_factors(const AttentionShape& p, int64_t b, int64_t h,
                                                int t, int key, C (&out)[kSub]) {
  static_assert(kSub == 4);
  const auto at = static_cast<uint64_t>(((b * p.heads + h) * p.queries + t) * p.keys + key);
  const Philox4 r = philox(p.state, at / 4);
  uint32_t words[8] = {r.v[0], r.v[1], r.v[2], r.v[3]};
  if (at % 4 != 0) {  // shifted down without an index, which would put the words into memory
    const Philox4 next = philox(p.state, at / 4 + 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[4 + i] = next.v[i];
#pragma unroll
    for (int i = 0; i < 7; ++i) words[i] = at % 2 ? words[i + 1] : words[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = at / 2 % 2 ? words[i + 2] : words[i];
  }
  const uint64_t threshold = draws::threshold(p.dropout);
  const C kept = p.dropout < 1 ? static_cast<C>(1 / (1 - p.dropout)) : C(0);
#pragma unroll
  for (int j = 0; j < kSub; ++j) out[j] = words[j] < threshold ? C(0) : kept;
}

/// With dropout, the factors of this thread's elements of a tile that begins at (t0, k0), into the
/// tile. Rolled up: four copies of the generator would not leave enough registers.
template <class C>
__device__ __forceinline__ void put_dropout_factors(const AttentionShape& p, int64_t b, int64_t h,
                                                    int t0, int k0, ScoreTile<C>& tile) {
  if (p.dropout == 0) return;
  const int column = thread_column();
#pragma unroll 1
  for (int i = 0; i < kSub; ++i) {
    const int row = thread_row() + i;
    C factors[kSub];
    dropout_factors(p, b, h, t0 + row, k0 + column, factors);
#pragma unroll
    for (int j = 0; j < kSub; ++j) tile.at[row][column + j] = factors[j];
  }
}

template <class C>
__device__ __forceinline__ void clear(C (&sums)[kSub][kSub]) {
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
#pragma unroll
    for (int j = 0; j < kSub; ++j) sums[i][j] = C(0);
  }
}

/// Adds tile [64, 64] times 64 rows of a matrix (`rows` of them there), columns from `column` on.
template <class T, class C>
__device__ void add_tile_product(TileBuffers<C>& buffers, const ScoreTile<C>& tile, const T* matrix,
                                 int64_t stride, int rows, int column, int width, C factor,
                                 C (&sums)[kSub][kSub]) {
  const CrossLoader<T, C> b{matrix + column, stride, width - column, rows, factor};
  multiply_tiles(buffers, kTile, TileLoader<C>{&tile}, b, sums);
}

/// Which tile of which head, and which 64 columns of the result, a block makes.
struct TileWork {
  int64_t b, h;
  int tile, chunk;

  __device__ TileWork(int64_t item, int64_t heads, int tiles, int chunks) {
    chunk = static_cast<int>(item % chunks);
    const int64_t rest = item / chunks;
    tile = static_cast<int>(rest % tiles);
    b = rest / tiles / heads;
    h = rest / tiles % heads;
  }
};

}  // namespace tarn::cuda
