// batch_norm_tiles.cuh - how batch norm's kernels walk a tensor, in both layouts, and sum per
// channel.
//
// A block works on tiles. Columns (channels last: rows of C channels): a tile is tx * V channels by
// some rows; a thread keeps its V channels and steps down the rows. Planes (row-major [N, C, L]): a
// tile is some planes, or a part of one, of a single channel. Either way what belongs to a channel
// is loaded once per tile, and a tile's sums are one number per channel, in f64. Tiles depend on
// the sizes alone, so results do not depend on the grid.
#pragma once

#include <algorithm>
#include <bit>

#include "tarn/core/tensor.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/vec.cuh"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {

inline constexpr int kNormThreads = 256;

/// Offset of the element (outer, inner) of channel c: columns: outer * C + c, inner = 0; planes:
/// (outer * C + c) * L + inner.
struct NormTiles {
  bool columns = false;
  bool vectors = false;  ///< kVecWidth elements at a time; else one
  int64_t channels = 0, length = 1;
  int64_t outer = 0;                       ///< rows, or planes per channel
  int64_t outer_step = 1, inner_step = 1;  ///< extent of a slice
  int64_t inner_slices = 1, slices = 1;    ///< of a channel
  int64_t channel_tiles = 1;
  int tx = 1;  ///< threads along the fast dimension, a power of two; the others go along outer

  int64_t tiles() const { return channel_tiles * slices; }
  unsigned blocks(Stream stream) const { return blocks_for(tiles(), 1, stream); }
};

/// Tiles for x [N, C, *]; `aligned`: all operands are aligned to 16 bytes.
inline NormTiles make_norm_tiles(const Tensor& x, bool aligned) {
  constexpr int64_t kMostSlices = 1024;  // what the second step adds per channel
  NormTiles t;
  const int64_t batch = x.sizes()[0], width = 16 / item_size(x.dtype());
  t.channels = x.sizes()[1];
  t.length = x.numel() / (batch * t.channels);
  t.columns = t.length == 1 ||
              (t.channels > 1 && x.dim() == 4 && x.is_contiguous(MemoryFormat::kChannelsLast));
  const int64_t fast = t.columns ? t.channels : t.length;
  t.vectors = aligned && fast % width == 0;
  const int64_t v = t.vectors ? width : 1;
  const auto threads = [&](int64_t most) {
    return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::min(fast / v, most))));
  };
  if (t.columns) {
    constexpr int64_t kMostRows = 64, kLeastRows = 8;  // per thread
    constexpr int64_t kEnoughTiles = 512;
    t.outer = batch * t.length;
    t.tx = threads(kWarp);
    t.channel_tiles = ceil_div(t.channels, t.tx * v);
    int64_t rows = kMostRows;
    const auto step = [&] { return kNormThreads / t.tx * rows; };
    while (rows > kLeastRows && t.channel_tiles * ceil_div(t.outer, step()) < kEnoughTiles) {
      rows /= 2;
    }
    t.outer_step = std::max(step(), ceil_div(t.outer, kMostSlices));
    t.slices = ceil_div(t.outer, t.outer_step);
    return t;
  }
  constexpr int64_t kVectors = 16;  // per thread
  t.outer = batch;
  t.tx = threads(kNormThreads);
  t.channel_tiles = t.channels;
  t.inner_step = std::min(t.length, kNormThreads * kVectors * v);
  t.inner_slices = ceil_div(t.length, t.inner_step);
  if (t.inner_slices == 1) {
    const int64_t per_plane = ceil_div(t.length, t.tx * v);
    t.outer_step = kNormThreads / t.tx * std::max<int64_t>(1, kVectors / per_plane);
    t.outer_step = std::max(t.outer_step, ceil_div(t.outer, kMostSlices));
  }
  t.slices = ceil_div(t.outer, t.outer_step) * t.inner_slices;
  return t;
}

/// One thread's way through a tile: `left` vectors of V elements, the next of them at offset `at`.
template <int V, bool kColumns>
struct TileWalk {
  int64_t slice, channel;  // the thread's first channel; planes: the block's
  int64_t outer_size, inner_size;
  int64_t at;
  int left;

  __device__ TileWalk(const NormTiles& t, int64_t tile) {
    const int x = static_cast<int>(threadIdx.x) % t.tx, y = static_cast<int>(threadIdx.x) / t.tx;
    const int ty = kNormThreads / t.tx;
    slice = tile / t.channel_tiles;
    const int64_t tile_in_channels = tile - slice * t.channel_tiles;
    const int64_t outer_slice = slice / t.inner_slices;
    const int64_t first = outer_slice * t.outer_step;
    outer_size = min64(t.outer_step, t.outer - first);
    const int rows = static_cast<int>((outer_size - y + ty - 1) / ty);  // 0 for y past the end
    if constexpr (kColumns) {
      channel = (tile_in_channels * t.tx + x) * V;
      inner_size = 1;
      at = (first + y) * t.channels + channel;
      left = channel < t.channels ? rows : 0;
      stride_ = ty * t.channels;
    } else {
      channel = tile_in_channels;
      const int64_t inner = (slice - outer_slice * t.inner_slices) * t.inner_step;
      inner_size = min64(t.inner_step, t.length - inner);
      step_ = t.tx * V;
      per_row_ = static_cast<int>((inner_size - x * V + step_ - 1) / step_);
      at = ((first + y) * t.channels + channel) * t.length + inner + x * V;
      left = per_row_ * rows;
      left_in_row_ = per_row_;
      stride_ = ty * t.channels * t.length - static_cast<int64_t>(per_row_ - 1) * step_;
    }
  }
  __device__ void next() {
    if constexpr (kColumns) {
      at += stride_;
    } else {
      const bool row_ends = --left_in_row_ == 0;
      at += row_ends ? stride_ : step_;
      left_in_row_ = row_ends ? per_row_ : left_in_row_;
    }
  }
  /// Elements per channel in the tile.
  __device__ double count() const { return static_cast<double>(outer_size * inner_size); }
  /// Threads with any element of one channel.
  __device__ double threads(const NormTiles& t) const {
    const int64_t y = min64(outer_size, kNormThreads / t.tx);
    return static_cast<double>(kColumns ? y : y * min64(t.tx, (inner_size + V - 1) / V));
  }

 private:
  static __device__ int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
  int64_t stride_;
  int step_ = 0, per_row_ = 0, left_in_row_ = 0;
};

/// Calls load(slot, at) and use(slot, at) for every vector of the walk, kBatch of them loaded
/// before any is used: those are the bytes that a thread has under way.
template <int kBatch, class Walk, class Load, class Use>
__device__ __forceinline__ void for_vectors(Walk& walk, Load load, Use use) {
  int left = walk.left;
  for (; left >= kBatch; left -= kBatch) {
    int64_t at[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      at[u] = walk.at;
      load(u, at[u]);
      walk.next();
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) use(u, at[u]);
  }
#pragma unroll 1
  for (; left > 0; --left) {
    load(0, walk.at);
    use(0, walk.at);
    walk.next();
  }
}

/// Channels a thread has.
template <int V, bool kColumns>
inline constexpr int kThreadChannels = kColumns ? V : 1;

/// Shared memory of sum_tile.
template <int V, bool kColumns>
inline constexpr int kSumBuffer = kColumns ? kNormThreads* V : kWarp;

/// Where sum_tile leaves the sum of channel k of a thread.
template <bool kColumns>
__device__ __forceinline__ int sum_place(int tx, int k) {
  return kColumns ? k * kNormThreads + static_cast<int>(threadIdx.x) % tx : 0;
}

/// Adds value[k] over the threads that share channel k. All threads must call; afterwards the sums
/// stand in buffer[sum_place(tx, k)], until the next barrier but one.
template <int V, bool kColumns>
__device__ void sum_tile(const double (&value)[kThreadChannels<V, kColumns>], int tx,
                         double* buffer) {
  __syncthreads();  // whoever still reads the last sums
  if constexpr (kColumns) {
    const int thread = static_cast<int>(threadIdx.x);
    // Channel k of all threads lies together: a warp stores to different banks.
#pragma unroll
    for (int k = 0; k < V; ++k) buffer[k * kNormThreads + thread] = value[k];
    __syncthreads();
    for (int c = thread; c < tx * V; c += kNormThreads) {
      double* const column = buffer + c / tx * kNormThreads + c % tx;
      double sum = 0;
      for (int i = 0; i < kNormThreads; i += tx) sum += column[i];
      *column = sum;  // only this thread has read this place
    }
  } else {
    const double sum = block_reduce(value[0], 0.0, buffer, Sum());
    if (threadIdx.x == 0) buffer[0] = sum;
  }
  __syncthreads();
}

}  // namespace tarn::cuda
