// batch_norm_backward.cu - gradients of batch norm, and of the relu and residual fused with it.
//
// Two passes over gy and x with the sums per channel of g and g * (x - mean) between them: 4 reads
// and 1 write per element. The relu's mask is recomputed from x, unless a residual was added: then
// it is read from y (1 read), and the second pass reads the masked gradient that the first one
// wrote for the residual (1 write). A tile's sums are f32 per thread and f64 from there on, in an
// order fixed by the sizes.
#include "tarn/core/mul_add.h"
#include "tarn/cuda/batch_norm.h"
#include "tarn/cuda/batch_norm_tiles.cuh"
#include "tarn/cuda/channel_values.cuh"
#include "tarn/cuda/scratch.h"

namespace tarn::cuda {
namespace {

constexpr int kBatch = 2;  // of two or three operands

enum class Mask { kNone, kFromX, kFromY };

template <class T>
struct Operands {
  const T *gy, *x, *y;
  T *gx, *gresidual;
  Mask mask;
  bool fixed;  // mean and rstd were constants
};

/// Vectors of gy, x and (for kFromY) y; the gradient behind the relu.
template <class T, int V>
struct Loaded {
  Vec<T, V> gy, x, y;

  __device__ __forceinline__ void load(const Operands<T>& o, int64_t at) {
    gy = load_vec<V>(o.gy + at);
    x = load_vec<V>(o.x + at);
    if (o.mask == Mask::kFromY) y = load_vec<V>(o.y + at);
  }
  template <class A>
  __device__ __forceinline__ A masked(Mask mask, int k, A mean, A scale, A shift) const {
    const A g = static_cast<A>(gy.v[k]);
    A y_sign = A(1);
    if (mask == Mask::kFromX) y_sign = mul_add(static_cast<A>(x.v[k]) - mean, scale, shift);
    if (mask == Mask::kFromY) y_sign = static_cast<A>(y.v[k]);
    return y_sign <= A(0) ? A(0) : g;
  }
};

struct TileSums {
  double sum, dot;  // of g, and of g * (x - mean)
};

/// parts[slice][channel] = sums of the slice; writes the masked gradient if gresidual is given.
template <class T, int V, bool kColumns>
__global__ void __launch_bounds__(kNormThreads, 2)
    tile_sums(Operands<T> o, NormTiles t, int64_t tiles, BatchNormChannels channels,
              TileSums* parts) {
  using A = compute_t<T>;
  constexpr int kC = kThreadChannels<V, kColumns>;
  __shared__ double buffer[kSumBuffer<V, kColumns>];
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    TileWalk<V, kColumns> walk(t, tile);
    A mean[kC] = {}, scale[kC] = {}, shift[kC] = {};
    if (walk.channel < t.channels) channels.load(walk.channel, mean, scale, shift);
    A sums[V] = {}, dots[V] = {};
    Loaded<T, V> in[kBatch];
    for_vectors<kBatch>(
        walk, [&](int u, int64_t at) { in[u].load(o, at); },
        [&](int u, int64_t at) {
          Vec<T, V> out;
#pragma unroll
          for (int k = 0; k < V; ++k) {
            const int c = kColumns ? k : 0;
            const A g = in[u].masked(o.mask, k, mean[c], scale[c], shift[c]);
            sums[k] += g;
            dots[k] += g * (static_cast<A>(in[u].x.v[k]) - mean[c]);
            out.v[k] = T(g);
          }
          if (o.gresidual) store_vec(o.gresidual + at, out);
        });
    double sum[kC] = {}, dot[kC] = {};
#pragma unroll
    for (int k = 0; k < V; ++k) {
      sum[kColumns ? k : 0] += sums[k];
      dot[kColumns ? k : 0] += dots[k];
    }
    // The first row of threads owns the channels.
    const bool owner = static_cast<int>(threadIdx.x) < (kColumns ? t.tx : 1);
    sum_tile<V, kColumns>(sum, t.tx, buffer);
    if (owner) {
#pragma unroll
      for (int k = 0; k < kC; ++k) sum[k] = buffer[sum_place<kColumns>(t.tx, k)];
    }
    sum_tile<V, kColumns>(dot, t.tx, buffer);
    if (owner && walk.channel < t.channels) {
#pragma unroll
      for (int k = 0; k < kC; ++k) {
        parts[walk.slice * t.channels + walk.channel + k] = {sum[k],
                                                             buffer[sum_place<kColumns>(t.tx, k)]};
      }
    }
  }
}

/// Per channel: the slices' sums as gradients of weight and bias, and the factors of the second
/// pass. `per_element`: 1 / n.
template <class A>
__global__ void __launch_bounds__(1024)
    channel_gradients(const TileSums* parts, int64_t slices, int64_t channels, double per_element,
                      ChannelValues rstd, ChannelResult gweight, ChannelResult gbias, A* factors) {
  __shared__ double sums[kWarp][kWarp + 1], dots[kWarp][kWarp + 1];
  const int lane = lane_id(), warp = warp_id();
  for (int64_t block = blockIdx.x; block * kWarp < channels; block += gridDim.x) {
    const int64_t c = block * kWarp + lane;
    double sum = 0, dot = 0;
    for (int64_t s = warp; c < channels && s < slices; s += kWarp) {
      sum += parts[s * channels + c].sum;
      dot += parts[s * channels + c].dot;
    }
    sums[warp][lane] = sum;
    dots[warp][lane] = dot;
    __syncthreads();
    if (warp == 0 && c < channels) {
      sum = dot = 0;
      for (int w = 0; w < kWarp; ++w) {
        sum += sums[w][lane];
        dot += dots[w][lane];
      }
      double r[1];
      rstd.load(c, 1.0, r);
      gweight.set(c, dot * r[0]);
      gbias.set(c, sum);
      factors[c] = static_cast<A>(sum * per_element);
      factors[channels + c] = static_cast<A>(dot * r[0] * r[0] * per_element);
    }
    __syncthreads();
  }
}

/// gx = scale * (g - a - (x - mean) * b), with a = sum / n and b = rstd^2 * dot / n in `factors`.
/// With fixed statistics gx = scale * g: factors of 0 would still spread NaN from sums or from x.
template <class T, int V, bool kColumns>
__global__ void __launch_bounds__(kNormThreads, 2)
    input_gradient(Operands<T> o, NormTiles t, int64_t tiles, BatchNormChannels channels,
                   const compute_t<T>* factors) {
  using A = compute_t<T>;
  constexpr int kC = kThreadChannels<V, kColumns>;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    TileWalk<V, kColumns> walk(t, tile);
    if (walk.left == 0) continue;
    A mean[kC], scale[kC], shift[kC], a[kC], b[kC];
    channels.load(walk.channel, mean, scale, shift);
#pragma unroll
    for (int k = 0; k < kC; ++k) {
      a[k] = factors[walk.channel + k];
      b[k] = factors[t.channels + walk.channel + k];
    }
    Loaded<T, V> in[kBatch];
    for_vectors<kBatch>(
        walk, [&](int u, int64_t at) { in[u].load(o, at); },
        [&](int u, int64_t at) {
          Vec<T, V> out;
#pragma unroll
          for (int k = 0; k < V; ++k) {
            const int c = kColumns ? k : 0;
            const A g = in[u].masked(o.mask, k, mean[c], scale[c], shift[c]);
            const A d = static_cast<A>(in[u].x.v[k]) - mean[c];
            out.v[k] = T(scale[c] * (o.fixed ? g : g - a[c] - d * b[c]));
          }
          store_vec(o.gx + at, out);
        });
  }
}

}  // namespace

void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& y, const Tensor& weight,
                         const Tensor& bias, const Tensor& mean, const Tensor& rstd, bool relu,
                         bool training, const Tensor& gx, const Tensor& gweight,
                         const Tensor& gbias, const Tensor& gresidual, Stream stream) {
  const NormTiles t = make_norm_tiles(x, all_aligned({&gy, &x, &y, &gx, &gresidual}));
  const BatchNormChannels channels{ChannelValues(mean), ChannelValues(rstd), ChannelValues(weight),
                                   ChannelValues(bias)};
  const Mask mask = !relu ? Mask::kNone : y.defined() ? Mask::kFromY : Mask::kFromX;
  const double per_element = 1.0 / static_cast<double>(t.outer * (t.columns ? 1 : t.length));
  const Scratch parts(static_cast<size_t>(t.slices * t.channels) * sizeof(TileSums), stream);
  visit_norm_tiles(x.dtype(), t, [&](auto tag, auto width, auto columns) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    Operands<T> o{gy.data_or_null<T>(),
                  x.data_or_null<T>(),
                  y.data_or_null<T>(),
                  gx.data_or_null<T>(),
                  nullptr,
                  mask,
                  !training};
    if (mask == Mask::kFromY) o.gresidual = gresidual.data_or_null<T>();
    launch(tile_sums<T, width, columns>, t.blocks(stream), kNormThreads, 0, stream, o, t, t.tiles(),
           channels, parts.as<TileSums>());
    const Scratch factors(static_cast<size_t>(2 * t.channels) * sizeof(A), stream);
    launch(channel_gradients<A>, blocks_for(t.channels, kWarp, stream), kWarp * kWarp, 0, stream,
           parts.as<TileSums>(), t.slices, t.channels, per_element, ChannelValues(rstd),
           ChannelResult(gweight), ChannelResult(gbias), factors.template as<A>());
    if (!o.gx) return;
    if (o.gresidual) {
      o.gy = o.gresidual;
      o.mask = Mask::kNone;
    }
    launch(input_gradient<T, width, columns>, t.blocks(stream), kNormThreads, 0, stream, o, t,
           t.tiles(), channels, factors.template as<A>());
  });
}

}  // namespace tarn::cuda
