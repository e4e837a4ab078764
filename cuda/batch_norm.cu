// batch_norm.cu - batch norm forward, fused with an added residual and relu.
//
// Training: per-tile moments, moments per channel, then the result: 2 reads and 1 write per element
// (and a read of the residual). A tile's values are taken relative to the mean of its first rows,
// so f32 sums of differences and their squares lose little, then combined in f64: mean = sum n_i
// mean_i / n, m2 = sum m2_i + n_i (mean_i - mean)^2 (Chan et al. 1979). Evaluation: 1 read, 1
// write. The order of every sum is fixed by the sizes.
#include <cmath>

#include "tarn/core/kernels.h"
#include "tarn/core/mul_add.h"
#include "tarn/cuda/batch_norm.h"
#include "tarn/cuda/batch_norm_tiles.cuh"
#include "tarn/cuda/channel_values.cuh"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

constexpr int kBatch = 4;

struct TileMoments {
  double n, mean, m2;
};

/// parts[slice][channel] = moments of the slice.
template <class T, int V, bool kColumns>
__global__ void __launch_bounds__(kNormThreads, 2)
    tile_moments(const T* x, NormTiles t, int64_t tiles, TileMoments* parts) {
  using A = compute_t<T>;
  constexpr int kC = kThreadChannels<V, kColumns>;
  __shared__ double buffer[kSumBuffer<V, kColumns>];
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    TileWalk<V, kColumns> walk(t, tile);
    double sum[kC] = {};
    if (walk.left > 0) {
      const Vec<T, V> first = load_vec<V>(x + walk.at);
#pragma unroll
      for (int k = 0; k < kC; ++k) sum[k] = static_cast<A>(first.v[k]);
    }
    sum_tile<V, kColumns>(sum, t.tx, buffer);
    A shift[kC];
#pragma unroll
    for (int k = 0; k < kC; ++k) {
      shift[k] = static_cast<A>(buffer[sum_place<kColumns>(t.tx, k)] / walk.threads(t));
    }

    A sums[V] = {}, squares[V] = {};
    Vec<T, V> in[kBatch];
    for_vectors<kBatch>(
        walk, [&](int u, int64_t at) { in[u] = load_vec<V>(x + at); },
        [&](int u, int64_t) {
#pragma unroll
          for (int k = 0; k < V; ++k) {
            const A d = static_cast<A>(in[u].v[k]) - shift[kColumns ? k : 0];
            sums[k] += d;
            squares[k] += d * d;
          }
        });
    double square[kC] = {};
#pragma unroll
    for (int k = 0; k < kC; ++k) sum[k] = 0;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      sum[kColumns ? k : 0] += sums[k];
      square[kColumns ? k : 0] += squares[k];
    }
    sum_tile<V, kColumns>(sum, t.tx, buffer);
    // The owner of a channel writes it, so each owner passes on its shift.
    const bool owner = static_cast<int>(threadIdx.x) < (kColumns ? t.tx : 1);
    if (owner) {
#pragma unroll
      for (int k = 0; k < kC; ++k) sum[k] = buffer[sum_place<kColumns>(t.tx, k)];
    }
    sum_tile<V, kColumns>(square, t.tx, buffer);
    if (!owner) continue;
    const double n = walk.count();
#pragma unroll
    for (int k = 0; k < kC; ++k) {
      if (walk.channel + k >= t.channels) break;
      const double off = sum[k] / n, squares_sum = buffer[sum_place<kColumns>(t.tx, k)];
      parts[walk.slice * t.channels + walk.channel + k] = {n, shift[k] + off,
                                                           squares_sum - sum[k] * off};
    }
  }
}

/// Per channel: the moments of all slices, as mean, rstd and biased variance. 32 channels a block,
/// the slices dealt out to its 32 warps; two passes over the parts, so no division in them.
__global__ void __launch_bounds__(1024)
    channel_moments(const TileMoments* parts, int64_t slices, int64_t channels, double eps,
                    ChannelResult mean_out, ChannelResult rstd_out, ChannelResult var_out) {
  __shared__ double counts[kWarp][kWarp + 1], sums[kWarp][kWarp + 1];
  const int lane = lane_id(), warp = warp_id();
  for (int64_t block = blockIdx.x; block * kWarp < channels; block += gridDim.x) {
    const int64_t c = block * kWarp + lane;
    const bool valid = c < channels;
    double n = 0, sum = 0;
    for (int64_t s = warp; valid && s < slices; s += kWarp) {
      const TileMoments& part = parts[s * channels + c];
      n += part.n;
      sum += part.n * part.mean;
    }
    counts[warp][lane] = n;
    sums[warp][lane] = sum;
    __syncthreads();
    n = sum = 0;
    for (int w = 0; w < kWarp; ++w) {
      n += counts[w][lane];
      sum += sums[w][lane];
    }
    const double mean = sum / n;
    double m2 = 0;
    for (int64_t s = warp; valid && s < slices; s += kWarp) {
      const TileMoments& part = parts[s * channels + c];
      const double d = part.mean - mean;
      m2 += part.m2 + part.n * d * d;
    }
    __syncthreads();
    sums[warp][lane] = m2;
    __syncthreads();
    if (warp == 0 && valid) {
      m2 = 0;
      for (int w = 0; w < kWarp; ++w) m2 += sums[w][lane];
      const double var = m2 < 0 ? 0 : m2 / n;
      mean_out.set(c, mean);
      var_out.set(c, var);
      rstd_out.set(c, 1 / std::sqrt(var + eps));
    }
    __syncthreads();
  }
}

/// y = act((x - mean) * weight * rstd + bias + residual).
template <class T, int V, bool kColumns>
__global__ void __launch_bounds__(kNormThreads, 2)
    apply_batch_norm(const T* x, const T* residual, NormTiles t, int64_t tiles,
                     BatchNormChannels channels, bool relu, T* y) {
  using A = compute_t<T>;
  constexpr int kC = kThreadChannels<V, kColumns>;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    TileWalk<V, kColumns> walk(t, tile);
    if (walk.left == 0) continue;
    A mean[kC], scale[kC], shift[kC];
    channels.load(walk.channel, mean, scale, shift);
    Vec<T, V> in[kBatch], add[kBatch];
    for_vectors<kBatch>(
        walk,
        [&](int u, int64_t at) {
          in[u] = load_vec<V>(x + at);
          if (residual) add[u] = load_vec<V>(residual + at);
        },
        [&](int u, int64_t at) {
          Vec<T, V> out;
#pragma unroll
          for (int k = 0; k < V; ++k) {
            const int c = kColumns ? k : 0;
            A value = mul_add(static_cast<A>(in[u].v[k]) - mean[c], scale[c], shift[c]);
            if (residual) value += static_cast<A>(add[u].v[k]);
            out.v[k] = T(relu && value < A(0) ? A(0) : value);  // NaN stays
          }
          store_vec(y + at, out);
        });
  }
}

template <class T, int V, bool kColumns>
void find_moments(const Tensor& x, const NormTiles& t, double eps, const Tensor& mean,
                  const Tensor& rstd, const Tensor& var, Stream stream) {
  const Scratch parts(static_cast<size_t>(t.slices * t.channels) * sizeof(TileMoments), stream);
  launch(tile_moments<T, V, kColumns>, t.blocks(stream), kNormThreads, 0, stream,
         static_cast<const T*>(x.data()), t, t.tiles(), parts.as<TileMoments>());
  launch(channel_moments, blocks_for(t.channels, kWarp, stream), kWarp * kWarp, 0, stream,
         parts.as<TileMoments>(), t.slices, t.channels, eps, ChannelResult(mean),
         ChannelResult(rstd), ChannelResult(var));
}

void batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& residual, bool relu, const Tensor& mean, const Tensor& rstd,
                     const Tensor& y, Stream stream) {
  const NormTiles t = make_norm_tiles(x, all_aligned({&x, &residual, &y}));
  const BatchNormChannels channels{ChannelValues(mean), ChannelValues(rstd), ChannelValues(weight),
                                   ChannelValues(bias)};
  visit_norm_tiles(x.dtype(), t, [&](auto tag, auto width, auto columns) {
    using T = typename decltype(tag)::type;
    launch(apply_batch_norm<T, width, columns>, t.blocks(stream), kNormThreads, 0, stream,
           static_cast<const T*>(x.data()), residual.data_or_null<T>(), t, t.tiles(), channels,
           relu, static_cast<T*>(y.data()));
  });
}

void batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& residual, bool relu, double eps, const Tensor& y,
                      const Tensor& mean, const Tensor& rstd, const Tensor& var, Stream stream) {
  const NormTiles t = make_norm_tiles(x, all_aligned({&x}));
  visit_norm_tiles(x.dtype(), t, [&](auto tag, auto width, auto columns) {
    using T = typename decltype(tag)::type;
    find_moments<T, width, columns>(x, t, eps, mean, rstd, var, stream);
  });
  batch_norm_eval(x, weight, bias, residual, relu, mean, rstd, y, stream);
}

}  // namespace

void add_norm_kernels(KernelTable& table) {
  table.norm.batch_norm_train = batch_norm_train;
  table.norm.batch_norm_eval = batch_norm_eval;
  table.norm.batch_norm_backward = batch_norm_backward;
  table.norm.layer_norm = layer_norm;
  table.norm.layer_norm_backward = layer_norm_backward;
}

}  // namespace tarn::cuda
