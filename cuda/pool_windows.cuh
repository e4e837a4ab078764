// pool_windows.cuh - the windows of a pooling on the device, and how threads share the work.
//
// A row-major image [N, C, H, W] is a channels_last one of N * C images with a single channel, so
// kernels know one layout: rows (image, h) of W pixels of C channels. A row of the result is walked
// by tx threads, V channels of a pixel at a time; the other threads of the block take further rows.
#pragma once

#include <algorithm>
#include <bit>

#include "tarn/core/kernels/pool.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/offsets.cuh"
#include "tarn/cuda/vec.cuh"

namespace tarn::cuda {

inline constexpr int kPoolThreads = 256;

/// n / divisor for 0 <= n < 2^63: an estimate that is exact or one too small, and its correction.
struct WideDivisor {
  uint32_t divisor;
  uint64_t reciprocal;

  explicit WideDivisor(int d)
      : divisor(static_cast<uint32_t>(d)), reciprocal(~uint64_t{0} / static_cast<uint32_t>(d)) {}

  __device__ __forceinline__ int64_t divide(int64_t n) const {
    const auto u = static_cast<uint64_t>(n);
    const uint64_t q = __umul64hi(u, reciprocal);
    return static_cast<int64_t>(q + (u - q * divisor >= divisor));
  }
};

/// Sizes and offsets within an image are 32 bits, and so are sums of two of them.
inline int pool_size(int64_t n) {
  TARN_CHECK_AS(UnsupportedError, n >= 0 && n < (int64_t{1} << 30),
                "pool2d: on cuda sizes, strides, padding and the elements of a row must be below "
                "2^30; got ",
                n);
  return static_cast<int>(n);
}

/// One axis; see Pool2dOptions.
struct PoolAxis {
  int in, out, kernel, stride, pad, step;
  bool adaptive;
  WideDivisor by_in, by_out;
  FastDivisor by_stride;

  PoolAxis(int64_t in_size, int64_t out_size, int64_t kernel_size, int64_t window_stride,
           int64_t padding, int64_t dilation, bool is_adaptive)
      : in(pool_size(in_size)),
        out(pool_size(out_size)),
        kernel(pool_size(kernel_size)),
        stride(pool_size(window_stride)),
        pad(pool_size(padding)),
        step(is_adaptive ? 1 : pool_size(dilation)),
        adaptive(is_adaptive),
        by_in(in),
        by_out(out),
        by_stride(static_cast<uint32_t>(stride)) {}

  /// Inputs first, first + step ... below last; `extent` counts the padding that averages count.
  struct Window {
    int first, last, extent;
  };
  __device__ Window window(int o) const {
    int begin, end, limit = in;
    if (adaptive) {
      begin = static_cast<int>(by_out.divide(static_cast<int64_t>(o) * in));
      end = static_cast<int>(by_out.divide((static_cast<int64_t>(o) + 1) * in + out - 1));
    } else {
      begin = o * stride - pad;
      end = begin + (kernel - 1) * step + 1;
      limit += pad;
    }
    const int extent = (end < limit ? end : limit) - begin;
    if (begin < 0) begin += step == 1 ? -begin : (step - 1 - begin) / step * step;
    return {begin, end < in ? end : in, extent};
  }

  /// Windows that may cover input i lie in [from, until).
  struct Range {
    int from, until;
  };
  __device__ Range covering(int i) const {
    int from, until;
    if (adaptive) {
      from = static_cast<int>(by_in.divide(static_cast<int64_t>(i) * out));
      until = static_cast<int>(by_in.divide((static_cast<int64_t>(i) + 1) * out + in - 1));
    } else {
      const int reach = i + pad - (kernel - 1) * step;  // where the first such window begins
      from = reach <= 0 ? 0 : strides(reach + stride - 1);
      until = strides(i + pad) + 1;
    }
    return {from, until < out ? until : out};
  }

 private:
  __device__ int strides(int n) const {
    return static_cast<int>(by_stride.divide(static_cast<uint32_t>(n)));
  }
};

/// Both axes and the sizes around them. `large` is x or gx, `small` y or gy.
struct PoolShape {
  int64_t images;
  int channels;
  PoolAxis h, w;
  bool include_pad;
  int64_t divisor_override;

  PoolShape(const Tensor& large, const Tensor& small, const Pool2dOptions& o)
      : images(large.sizes()[0]),
        channels(pool_size(large.sizes()[1])),
        h(large.sizes()[2], small.sizes()[2], o.kernel_h, o.stride_h, o.pad_h, o.dilation_h,
          o.adaptive),
        w(large.sizes()[3], small.sizes()[3], o.kernel_w, o.stride_w, o.pad_w, o.dilation_w,
          o.adaptive),
        include_pad(o.count_include_pad && !o.adaptive),
        divisor_override(o.adaptive ? 0 : o.divisor_override) {
    if (large.is_contiguous() && small.is_contiguous()) {
      images *= channels;
      channels = 1;
    }
  }

  /// What the sum over a window is divided by.
  template <class A>
  __device__ A divisor(const PoolAxis::Window& y, const PoolAxis::Window& x) const {
    if (divisor_override != 0) return static_cast<A>(divisor_override);
    if (include_pad) return static_cast<A>(static_cast<int64_t>(y.extent) * x.extent);
    const int64_t height = y.last - y.first, width = x.last - x.first;
    return static_cast<A>((height > 1 ? height : 1) * (width > 1 ? width : 1));
  }
};

/// How rows of `pixels` * channels / V vectors are dealt out to threads.
struct PoolGrid {
  int64_t rows;
  int vectors;            // in a row
  int tx;                 // threads along a row, a power of two
  FastDivisor per_pixel;  // vectors of a pixel

  PoolGrid(int64_t row_count, int pixels, int channels, int width)
      : rows(row_count),
        vectors(pool_size(int64_t{pixels} * (channels / width))),
        tx(static_cast<int>(
            std::bit_ceil(static_cast<unsigned>(std::clamp(vectors, 1, kPoolThreads))))),
        per_pixel(static_cast<uint32_t>(channels / width)) {}

  unsigned blocks(Stream stream) const { return blocks_for(rows, kPoolThreads / tx, stream); }
};

/// Calls f(row, pixel, channel) for each of this thread's vectors of V channels.
template <int V, class F>
__device__ __forceinline__ void for_pixels(const PoolGrid& grid, F f) {
  const int ty = kPoolThreads / grid.tx, x = static_cast<int>(threadIdx.x) % grid.tx;
  int64_t row = static_cast<int64_t>(blockIdx.x) * ty + static_cast<int>(threadIdx.x) / grid.tx;
  for (; row < grid.rows; row += static_cast<int64_t>(gridDim.x) * ty) {
    for (int i = x; i < grid.vectors; i += grid.tx) {
      const auto linear = static_cast<uint32_t>(i);
      const uint32_t pixel = grid.per_pixel.divide(linear);
      f(row, static_cast<int>(pixel),
        static_cast<int>(linear - pixel * grid.per_pixel.divisor) * V);
    }
  }
}

/// Calls f(width) with the vector width that C channels and the pointers allow: full or 1.
template <class T, class F>
void visit_pool_width(const PoolShape& shape, std::initializer_list<const void*> pointers, F f) {
  constexpr int kWidth = kVecWidth<T>;
  bool full = shape.channels % kWidth == 0;
  for (const void* p : pointers) full = full && is_aligned(p, 16);
  full ? f(std::integral_constant<int, kWidth>()) : f(std::integral_constant<int, 1>());
}

}  // namespace tarn::cuda
