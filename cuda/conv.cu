// conv.cu - convolution of channels_last images and the gradient of its input, as implicit GEMMs.
//
// Forward: rows are output pixels, columns the channels of a group, depth runs over (r, s, c) with
// the channel fastest, so that a slice of x is contiguous; its elements are gathered as they are
// read and no im2col matrix is ever written. The input's gradient is the same product with the
// roles exchanged: rows are input pixels and the gather asks which output pixel reached them
// through (r, s). Source: Chetlur et al. 2014, arXiv:1410.0759 (section 3.1).
//
// Memory: a block reads 64 * depth elements of each operand for 64 x 64 results: x once per 64
// output channels, weights once per 64 pixels (both mostly out of L2), y written once. Arithmetic
// intensity 32 FMA per loaded pair of elements. Halves accumulate in f32.
//
// Groups with few channels would leave most columns of a tile empty: conv_direct.cu does those.
#include "tarn/core/error.h"
#include "tarn/cuda/conv_direct.h"
#include "tarn/cuda/conv_tile.cuh"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

constexpr int kFewChannels = 16;      // below it a tile is emptier than a direct sum is slow
constexpr int kOutside = -(1 << 30);  // a row or column that no tap brings back into the image

/// x as rows of output pixels: element (pixel, depth) = x[n, ih, iw, group * CG + c].
template <class T>
struct InputRows {
  using Order = DepthFastest;
  using C = compute_t<T>;
  const ConvShape& p;
  const ConvDivisors& d;
  const T* images[kSub];
  int ih[kSub], iw[kSub];

  __device__ InputRows(const ConvShape& shape, const ConvDivisors& divisors, const T* x,
                       int64_t first, int group)
      : p(shape), d(divisors) {
    const Place start = place_of(first, d.y_image);
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const Place at = place_from(start, Order::line(i), d.y_image);
      const Split pixel = split(at.rest, d.y_row);
      images[i] = x + at.image * p.x_image() + group * p.cg();
      ih[i] = at.image < p.n ? pixel.quotient * p.stride_h - p.pad_h : kOutside;
      iw[i] = pixel.rest * p.stride_w - p.pad_w;
    }
  }
  __device__ __forceinline__ void load(int first, C (&out)[kSub]) const {
    const Split tap = split(first + Order::depth(0), d.cg);
    const Split rs = split(tap.quotient, d.s);
    const bool deep = rs.quotient < p.r;
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int y = ih[i] + rs.quotient * p.dilation_h, x = iw[i] + rs.rest * p.dilation_w;
      out[i] = deep && inside(y, p.h) && inside(x, p.w)
                   ? static_cast<C>(images[i][(y * p.w + x) * p.c + tap.rest])
                   : C(0);
    }
  }
};

/// gy as rows of input pixels: element (pixel, depth) = gy[n, oh, ow, group * KG + k], if (r, s)
/// leads from the pixel to an output.
template <class T>
struct GradientRows {
  using Order = DepthFastest;
  using C = compute_t<T>;
  const ConvShape& p;
  const ConvDivisors& d;
  const T* images[kSub];
  int h[kSub], w[kSub];

  __device__ GradientRows(const ConvShape& shape, const ConvDivisors& divisors, const T* gy,
                          int64_t first, int group)
      : p(shape), d(divisors) {
    const Place start = place_of(first, d.x_image);
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const Place at = place_from(start, Order::line(i), d.x_image);
      const Split pixel = split(at.rest, d.x_row);
      images[i] = gy + at.image * p.y_image() + group * p.kg();
      h[i] = at.image < p.n ? pixel.quotient : kOutside;
      w[i] = pixel.rest;
    }
  }
  __device__ __forceinline__ void load(int first, C (&out)[kSub]) const {
    const Split tap = split(first + Order::depth(0), d.kg);
    const Split rs = split(tap.quotient, d.s);
    const bool deep = rs.quotient < p.r;
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int y = output_of(h[i], rs.quotient, d.stride_h, p.dilation_h, p.pad_h, p.oh);
      const int x = output_of(w[i], rs.rest, d.stride_w, p.dilation_w, p.pad_w, p.ow);
      out[i] = deep && y >= 0 && x >= 0 ? static_cast<C>(images[i][(y * p.ow + x) * p.k + tap.rest])
                                        : C(0);
    }
  }
};

/// Weights as columns of output channels: element (k, depth) = w[k, c, r, s].
template <class T>
struct FilterColumns {
  using Order = DepthFastest;
  using C = compute_t<T>;
  const ConvShape& p;
  const ConvDivisors& d;
  const T* w;  // of the tile's first channel
  int columns;

  __device__ __forceinline__ void load(int first, C (&out)[kSub]) const {
    const Split tap = split(first + Order::depth(0), d.cg);
    const bool deep = tap.quotient < p.filter();
    const int64_t per_filter = static_cast<int64_t>(p.cg()) * p.filter();
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int k = Order::line(i);
      out[i] = deep && k < columns
                   ? static_cast<C>(w[k * per_filter + tap.rest * p.filter() + tap.quotient])
                   : C(0);
    }
  }
};

/// Weights as columns of input channels: element (c, depth) = w[k, c, r, s].
template <class T>
struct FilterRows {
  using Order = LineFastest;
  using C = compute_t<T>;
  const ConvShape& p;
  const ConvDivisors& d;
  const T* w;  // of the group's first filter and the tile's first channel
  int columns;

  __device__ __forceinline__ void load(int first, C (&out)[kSub]) const {
    const int64_t per_filter = static_cast<int64_t>(p.cg()) * p.filter();
    const int c = Order::line(0);
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const Split tap = split(first + Order::depth(i), d.kg);
      out[i] = c < columns && tap.quotient < p.filter()
                   ? static_cast<C>(w[tap.rest * per_filter + c * p.filter() + tap.quotient])
                   : C(0);
    }
  }
};

/// Writes a thread's 4 x 4 sums, plus bias if there is one, to rows of `stride` elements.
template <class T>
__device__ void store_tile(const compute_t<T> (&sums)[kSub][kSub], int64_t rows, int columns,
                           const T* bias, T* to, int64_t stride, bool aligned) {
  const int row = static_cast<int>(threadIdx.x) / (kTile / kSub) * kSub;
  const int column = static_cast<int>(threadIdx.x) % (kTile / kSub) * kSub;
  if (column >= columns) return;
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
    if (row + i >= rows) return;
    Vec<T, kSub> out;
#pragma unroll
    for (int j = 0; j < kSub; ++j) {
      compute_t<T> sum = sums[i][j];
      if (bias && column + j < columns) sum += static_cast<compute_t<T>>(bias[column + j]);
      out.v[j] = T(sum);
    }
    T* const at = to + (row + i) * stride + column;
    if (aligned) {
      store_vec(at, out);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kSub; ++j) {
      if (column + j < columns) at[j] = out.v[j];
    }
  }
}

/// A tile's place: 64 rows from `first`, 64 columns of one group. Neighbouring tiles share rows.
struct TilePlace {
  int64_t first;
  int group, column;
};
__device__ __forceinline__ TilePlace tile_place(int64_t tile, int groups, int columns) {
  const int across = (columns + kTile - 1) / kTile;
  const int64_t per_row = static_cast<int64_t>(groups) * across;
  const int64_t down = tile / per_row;
  const int rest = static_cast<int>(tile - down * per_row);
  return {down * kTile, rest / across, rest % across * kTile};
}

template <class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    conv_forward_kernel(ConvShape p, ConvDivisors d, int64_t tiles, const T* x, const T* w,
                        const T* bias, T* y, bool aligned) {
  using C = compute_t<T>;
  __shared__ TileBuffers<C> shared;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TilePlace at = tile_place(tile, p.groups, p.kg());
    const int channel = at.group * p.kg() + at.column, columns = p.kg() - at.column;
    const InputRows<T> rows(p, d, x, at.first, at.group);
    const FilterColumns<T> filters{p, d, w + channel * (static_cast<int64_t>(p.cg()) * p.filter()),
                                   columns};
    C sums[kSub][kSub] = {};
    multiply_tiles(shared, p.filter() * p.cg(), rows, filters, sums);
    store_tile(sums, p.y_pixels() - at.first, columns, bias ? bias + channel : nullptr,
               y + at.first * p.k + channel, p.k, aligned);
  }
}

template <class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    conv_backward_data_kernel(ConvShape p, ConvDivisors d, int64_t tiles, const T* gy, const T* w,
                              T* gx, bool aligned) {
  using C = compute_t<T>;
  __shared__ TileBuffers<C> shared;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TilePlace at = tile_place(tile, p.groups, p.cg());
    const int columns = p.cg() - at.column;
    const GradientRows<T> rows(p, d, gy, at.first, at.group);
    const int64_t filter = static_cast<int64_t>(at.group) * p.kg() * p.cg() + at.column;
    const FilterRows<T> filters{p, d, w + filter * p.filter(), columns};
    C sums[kSub][kSub] = {};
    multiply_tiles(shared, p.filter() * p.kg(), rows, filters, sums);
    store_tile<T>(sums, p.x_pixels() - at.first, columns, nullptr,
                  gx + at.first * p.c + at.group * p.cg() + at.column, p.c, aligned);
  }
}

int64_t tile_count(int64_t pixels, int groups, int columns) {
  return ceil_div(pixels, kTile) * groups * ceil_div(columns, kTile);
}

template <class T>
bool vector_stores(const void* to, int group_channels) {
  return group_channels % kSub == 0 && is_aligned(to, kSub * sizeof(T));
}

void forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
             const Conv2dOptions& options, const Tensor& y, Stream stream) {
  if (y.numel() == 0) return;
  const ConvShape p = conv_shape(x.sizes(), weight.sizes(), y.sizes(), options);
  if (p.kg() < kFewChannels) return conv_direct_forward(p, x, weight, bias, y, stream);
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    const int64_t tiles = tile_count(p.y_pixels(), p.groups, p.kg());
    launch(conv_forward_kernel<T>, blocks_for(tiles, 1, stream), kTileThreads, 0, stream, p,
           ConvDivisors(p), tiles, x.data<T>(), weight.data<T>(), bias.data_or_null<T>(),
           y.data<T>(), vector_stores<T>(y.data(), p.kg()));
  });
}

void backward_data(const Tensor& gy, const Tensor& weight, const Conv2dOptions& options,
                   const Tensor& gx, Stream stream) {
  if (gx.numel() == 0) return;
  const ConvShape p = conv_shape(gx.sizes(), weight.sizes(), gy.sizes(), options);
  if (p.cg() < kFewChannels) return conv_direct_backward_data(p, gy, weight, gx, stream);
  visit_floating(gx.dtype(), [&]<class T>(TypeTag<T>) {
    const int64_t tiles = tile_count(p.x_pixels(), p.groups, p.cg());
    launch(conv_backward_data_kernel<T>, blocks_for(tiles, 1, stream), kTileThreads, 0, stream, p,
           ConvDivisors(p), tiles, gy.data<T>(), weight.data<T>(), gx.data<T>(),
           vector_stores<T>(gx.data(), p.cg()));
  });
}

}  // namespace

ConvShape conv_shape(const Shape& x, const Shape& weight, const Shape& y, const Conv2dOptions& o) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t reach_h = (y[2] + 1) * o.stride_h + o.pad_h + o.dilation_h * weight[2];
  const int64_t reach_w = (y[3] + 1) * o.stride_w + o.pad_w + o.dilation_w * weight[3];
  TARN_CHECK_AS(
      ShapeError,
      x[1] * x[2] * x[3] < kMost && y[1] * y[2] * y[3] < kMost && x[2] * x[3] < kMost &&
          y[2] * y[3] < kMost && weight[1] * weight[2] * weight[3] < kMost &&
          weight[0] * weight[2] * weight[3] < kMost && reach_h < kMost && reach_w < kMost,
      "conv2d: on cuda one image and one filter must have fewer than 2^30 elements; got x=", x,
      ", weight=", weight, ", result=", y);
  const auto narrow = [](int64_t v) { return static_cast<int>(v); };
  ConvShape p;
  p.n = x[0], p.c = narrow(x[1]), p.h = narrow(x[2]), p.w = narrow(x[3]);
  p.k = narrow(weight[0]), p.r = narrow(weight[2]), p.s = narrow(weight[3]);
  p.oh = narrow(y[2]), p.ow = narrow(y[3]);
  p.stride_h = narrow(o.stride_h), p.stride_w = narrow(o.stride_w);
  p.pad_h = narrow(o.pad_h), p.pad_w = narrow(o.pad_w);
  p.dilation_h = narrow(o.dilation_h), p.dilation_w = narrow(o.dilation_w);
  p.groups = narrow(o.groups);
  return p;
}

ConvKernels own_conv_kernels() {
  return {forward, backward_data, conv_backward_weight};
}

void add_conv_kernels(KernelTable& table) {
  table.conv = own_conv_kernels();
}

}  // namespace tarn::cuda
