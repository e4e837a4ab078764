// conv_backward.cu - the gradients of a convolution's filters and bias.
//
// gw[k, c, r, s] = sum over all output pixels of gy[pixel, k] * x[its input through (r, s), c]: a
// GEMM of few results and great depth. The depth is cut into chunks, each block adds up one chunk
// of one 64 x 64 tile into its own partial sums [chunk][K, R, S, CG], and a second kernel adds the
// chunks in their order: no atomics, the same bits on every run and every device. Chunks also keep
// the sums short: at most 8192 terms in a row, unless the partial sums would take over 256 MiB.
// The bias is the same sum with x = 1. Source: Chetlur et al. 2014, arXiv:1410.0759.
//
// Memory: x once per 64 output channels, gy once per 64 of the CG * R * S columns, partial sums
// written and read once. Groups with few channels: one thread per channel and filter element.
#include "tarn/cuda/conv_direct.h"
#include "tarn/cuda/conv_tile.cuh"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/scratch.h"

namespace tarn::cuda {
namespace {

constexpr int kFewChannels = 16;
constexpr int kThreads = 256;
constexpr int kLanes = 32;  // channels a block of the direct kernels works on
constexpr int kPixelLanes = kThreads / kLanes;

/// gy as rows of output channels: element (k, pixel).
template <class T>
struct GradientColumns {
  using Order = LineFastest;
  using C = compute_t<T>;
  const T* gy;  // of the chunk's first pixel and the tile's first channel
  int rows, pixels, k;

  __device__ __forceinline__ void load(int first, C (&out)[kSub]) const {
    const int row = Order::line(0);
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int pixel = first + Order::depth(i);
      out[i] = row < rows && pixel < pixels
                   ? static_cast<C>(gy[static_cast<int64_t>(pixel) * k + row])
                   : C(0);
    }
  }
};

/// x as columns (r, s, c): element (column, pixel) = x[n, ih, iw, group * CG + c].
template <class T>
struct InputColumns {
  using Order = LineFastest;
  using C = compute_t<T>;
  const ConvShape& p;
  const ConvDivisors& d;
  const T* x;
  Place start;  // of the first pixel
  int pixels, r, s, channel;

  __device__ InputColumns(const ConvShape& shape, const ConvDivisors& divisors, const T* data,
                          int64_t begin, int count, int group, int first_column)
      : p(shape), d(divisors), x(data), start(place_of(begin, divisors.y_image)), pixels(count) {
    const Split tap = split(first_column + Order::line(0), d.cg);
    const Split rs = split(tap.quotient, d.s);
    r = rs.quotient, s = rs.rest;
    channel = group * p.cg() + tap.rest;
  }
  __device__ __forceinline__ void load(int first, C (&out)[kSub]) const {
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int pixel = first + Order::depth(i);
      out[i] = C(0);
      if (r >= p.r || pixel >= pixels) continue;
      const Place at = place_from(start, pixel, d.y_image);
      const Split o = split(at.rest, d.y_row);
      const int ih = input_of(o.quotient, r, p.stride_h, p.dilation_h, p.pad_h);
      const int iw = input_of(o.rest, s, p.stride_w, p.dilation_w, p.pad_w);
      if (!inside(ih, p.h) || !inside(iw, p.w)) continue;
      out[i] = static_cast<C>(x[at.image * p.x_image() + (ih * p.w + iw) * p.c + channel]);
    }
  }
};

/// How the sum over pixels is cut: chunk i is [i * length, min((i + 1) * length, pixels)).
struct Chunks {
  int count;
  int length;
};

template <class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    conv_weight_partials_kernel(ConvShape p, ConvDivisors d, Chunks chunks, int64_t tiles,
                                const T* x, const T* gy, compute_t<T>* partials) {
  using C = compute_t<T>;
  __shared__ TileBuffers<C> shared;
  const int width = p.cg() * p.filter();
  const int down = (p.kg() + kTile - 1) / kTile, across = (width + kTile - 1) / kTile;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    // Neighbouring blocks share pixels: column tile fastest, then row tile, group, chunk.
    const int64_t line = tile / across, block = line / down;
    const int chunk = static_cast<int>(block / p.groups);
    const int group = static_cast<int>(block - static_cast<int64_t>(chunk) * p.groups);
    const int row0 = static_cast<int>(line - block * down) * kTile;
    const int column0 = static_cast<int>(tile - line * across) * kTile;
    const int64_t begin = static_cast<int64_t>(chunk) * chunks.length;
    const int64_t left = p.y_pixels() - begin;
    const int pixels = static_cast<int>(left < chunks.length ? left : chunks.length);
    const int first_row = group * p.kg() + row0;
    const GradientColumns<T> rows{gy + begin * p.k + first_row, p.kg() - row0, pixels, p.k};
    const InputColumns<T> columns(p, d, x, begin, pixels, group, column0);
    C sums[kSub][kSub] = {};
    multiply_tiles(shared, pixels, rows, columns, sums);
    const int row = static_cast<int>(threadIdx.x) / (kTile / kSub) * kSub;
    const int column = column0 + static_cast<int>(threadIdx.x) % (kTile / kSub) * kSub;
    C* const to = partials + static_cast<int64_t>(chunk) * p.weights();
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
#pragma unroll
      for (int j = 0; j < kSub; ++j) {
        if (row0 + row + i < p.kg() && column + j < width) {
          to[static_cast<int64_t>(first_row + row + i) * width + column + j] = sums[i][j];
        }
      }
    }
  }
}

/// The sum over the pixel lanes of a channel, in their order, in the first of them.
template <class C>
__device__ C sum_pixel_lanes(C (&shared)[kPixelLanes][kLanes], C sum) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  __syncthreads();  // the sums before may still be read
  shared[threadIdx.x / kLanes][lane] = sum;
  __syncthreads();
  C total = C(0);
  if (threadIdx.x < kLanes) {
    for (int i = 0; i < kPixelLanes; ++i) total += shared[i][lane];
  }
  return total;
}

/// Block = (chunk, filter element (r, s, c), 32 channels k), the channels fastest.
template <class T>
__global__ void __launch_bounds__(kThreads)
    conv_direct_weight_kernel(ConvShape p, ConvDivisors d, Chunks chunks, int64_t parts, const T* x,
                              const T* gy, compute_t<T>* partials) {
  using C = compute_t<T>;
  __shared__ C shared[kPixelLanes][kLanes];
  const int width = p.cg() * p.filter(), across = (p.k + kLanes - 1) / kLanes;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    const int64_t line = part / across;
    const int chunk = static_cast<int>(line / width);
    const int element = static_cast<int>(line - static_cast<int64_t>(chunk) * width);
    const int k =
        static_cast<int>(part - line * across) * kLanes + static_cast<int>(threadIdx.x) % kLanes;
    const Split tap = split(element, d.cg);
    const Split rs = split(tap.quotient, d.s);
    const int channel = split(k, d.kg).quotient * p.cg() + tap.rest;
    const int64_t begin = static_cast<int64_t>(chunk) * chunks.length;
    const int64_t left = p.y_pixels() - begin;
    const int pixels = static_cast<int>(left < chunks.length ? left : chunks.length);
    const Place start = place_of(begin, d.y_image);
    C sum = C(0);
    for (int i = static_cast<int>(threadIdx.x) / kLanes; k < p.k && i < pixels; i += kPixelLanes) {
      const Place at = place_from(start, i, d.y_image);
      const Split o = split(at.rest, d.y_row);
      const int ih = input_of(o.quotient, rs.quotient, p.stride_h, p.dilation_h, p.pad_h);
      const int iw = input_of(o.rest, rs.rest, p.stride_w, p.dilation_w, p.pad_w);
      if (!inside(ih, p.h) || !inside(iw, p.w)) continue;
      sum += static_cast<C>(gy[(begin + i) * p.k + k]) *
             static_cast<C>(x[at.image * p.x_image() + (ih * p.w + iw) * p.c + channel]);
    }
    sum = sum_pixel_lanes(shared, sum);
    if (threadIdx.x < kLanes && k < p.k) {
      partials[static_cast<int64_t>(chunk) * p.weights() + static_cast<int64_t>(k) * width +
               element] = sum;
    }
  }
}

/// Block = (chunk, 32 channels): partials [chunk][K].
template <class T>
__global__ void __launch_bounds__(kThreads)
    conv_bias_partials_kernel(int k, int64_t pixels, Chunks chunks, int64_t parts, const T* gy,
                              compute_t<T>* partials) {
  using C = compute_t<T>;
  __shared__ C shared[kPixelLanes][kLanes];
  const int across = (k + kLanes - 1) / kLanes;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    const int64_t chunk = part / across;
    const int channel =
        static_cast<int>(part - chunk * across) * kLanes + static_cast<int>(threadIdx.x) % kLanes;
    const int64_t begin = chunk * chunks.length;
    const int64_t end = begin + chunks.length < pixels ? begin + chunks.length : pixels;
    C sum = C(0);
    for (int64_t i = begin + threadIdx.x / kLanes; channel < k && i < end; i += kPixelLanes) {
      sum += static_cast<C>(gy[i * k + channel]);
    }
    sum = sum_pixel_lanes(shared, sum);
    if (threadIdx.x < kLanes && channel < k) partials[chunk * k + channel] = sum;
  }
}

/// to[outer, c, rs] = sum over chunks, in order, of partials[chunk][outer, rs, c].
template <class T>
__global__ void conv_sum_partials_kernel(int64_t count, int filter, int channels, int chunks,
                                         const compute_t<T>* partials, T* to) {
  using C = compute_t<T>;
  for (int64_t i = grid_index(); i < count; i += grid_step()) {
    C sum = C(0);
    for (int chunk = 0; chunk < chunks; ++chunk) sum += partials[chunk * count + i];
    const int64_t row = i / channels, outer = row / filter;
    const int64_t c = i - row * channels, rs = row - outer * filter;
    to[(outer * channels + c) * filter + rs] = T(sum);
  }
}

template <class T>
void sum_partials(int64_t count, int filter, int channels, int chunks, const compute_t<T>* partials,
                  T* to, Stream stream) {
  launch(conv_sum_partials_kernel<T>, blocks_for(count, kThreads, stream), kThreads, 0, stream,
         count, filter, channels, chunks, partials, to);
}

/// Chunks for `parts` independent pieces of work with `bytes` of partial sums a chunk: about 512
/// blocks in all, of at least 256 pixels. The same on every device.
Chunks make_chunks(int64_t pixels, int64_t parts, int64_t bytes) {
  constexpr int64_t kBlocks = 512, kLeast = 256, kMost = 8192, kPartials = int64_t{256} << 20;
  int64_t count = ceil_div(kBlocks, std::max<int64_t>(parts, 1));
  count = std::min(count, ceil_div(pixels, kLeast));
  count = std::max(count, ceil_div(pixels, kMost));
  count = std::min(count, std::max<int64_t>(kPartials / std::max<int64_t>(bytes, 1), 1));
  count = std::max(count, ceil_div(pixels, int64_t{1} << 29));  // pixels in a chunk are 32 bits
  if (count == 0) return {0, 1};
  const int64_t length = ceil_div(ceil_div(pixels, count), kTileDepth) * kTileDepth;
  return {static_cast<int>(ceil_div(pixels, length)), static_cast<int>(length)};
}

template <class T>
void weight_gradient(const ConvShape& p, const T* x, const T* gy, T* gw, Stream stream) {
  using C = compute_t<T>;
  const int width = p.cg() * p.filter();
  const bool direct = p.kg() < kFewChannels;
  const int64_t parts = direct ? ceil_div(p.k, kLanes) * width
                               : p.groups * ceil_div(p.kg(), kTile) * ceil_div(width, kTile);
  const int64_t bytes = p.weights() * static_cast<int64_t>(sizeof(C));
  const Chunks chunks = make_chunks(p.y_pixels(), parts, bytes);
  const Scratch partials(static_cast<size_t>(bytes * chunks.count), stream);
  launch(direct ? conv_direct_weight_kernel<T> : conv_weight_partials_kernel<T>,
         blocks_for(parts * chunks.count, 1, stream), kThreads, 0, stream, p, ConvDivisors(p),
         chunks, parts * chunks.count, x, gy, partials.as<C>());
  sum_partials(p.weights(), p.filter(), p.cg(), chunks.count, partials.as<C>(), gw, stream);
}

}  // namespace

void conv_bias_gradient(const ConvShape& p, const Tensor& gy, const Tensor& gb, Stream stream) {
  visit_floating(gy.dtype(), [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const int64_t across = ceil_div(p.k, kLanes);
    const int64_t bytes = p.k * static_cast<int64_t>(sizeof(C));
    const Chunks chunks = make_chunks(p.y_pixels(), across, bytes);
    const Scratch partials(static_cast<size_t>(bytes * chunks.count), stream);
    launch(conv_bias_partials_kernel<T>, blocks_for(across * chunks.count, 1, stream), kThreads, 0,
           stream, p.k, p.y_pixels(), chunks, across * chunks.count, gy.data<T>(),
           partials.as<C>());
    sum_partials(p.k, 1, 1, chunks.count, partials.as<C>(), gb.data<T>(), stream);
  });
}

void conv_backward_weight(const Tensor& x, const Tensor& gy, const Conv2dOptions& options,
                          const Tensor& gw, const Tensor& gb, Stream stream) {
  const ConvShape p = conv_shape(x.sizes(), gw.sizes(), gy.sizes(), options);
  if (gb.defined()) conv_bias_gradient(p, gy, gb, stream);
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    weight_gradient(p, x.data<T>(), gy.data<T>(), gw.data<T>(), stream);
  });
}

}  // namespace tarn::cuda
