// avg_pool.cu - average pooling, plain and adaptive, and its gradient.
//
// As pool.cu; sums are in the compute type and rounded once. Large windows (a global average) are
// shared: over row-major planes they are adjacent memory, which a warp reads; over channels_last
// images, where results are few, a block goes along the channels and the pixels.
#include "tarn/core/mul_add.h"
#include "tarn/cuda/columns.cuh"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/pool.h"
#include "tarn/cuda/pool_windows.cuh"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {
namespace {

template <class T, int V>
__global__ void __launch_bounds__(kPoolThreads, 4)
    avg_pool(const T* x, PoolShape shape, PoolGrid grid, T* y) {
  using A = compute_t<T>;
  const int channels = shape.channels, width = shape.w.in;
  for_pixels<V>(grid, [&](int64_t row, int ow, int c) {
    const int64_t image = shape.h.by_out.divide(row);
    const auto h = shape.h.window(static_cast<int>(row - image * shape.h.out));
    const auto w = shape.w.window(ow);
    const T* from = x + image * shape.h.in * width * channels + c;
    A sum[V] = {};
    for (int i = h.first; i < h.last; ++i) {
#pragma unroll 4
      for (int j = w.first; j < w.last; ++j) {
        const Vec<T, V> v = load_vec<V>(from + (static_cast<int64_t>(i) * width + j) * channels);
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += static_cast<A>(v.v[k]);
      }
    }
    const A divisor = shape.divisor<A>(h, w);
    Vec<T, V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) out.v[k] = T(sum[k] / divisor);
    store_vec(y + (row * shape.w.out + ow) * channels + c, out);
  });
}

/// One channel, one warp per window.
template <class T>
__global__ void __launch_bounds__(kPoolThreads, 4)
    warp_avg_pool(const T* x, PoolShape shape, T* y) {
  using A = compute_t<T>;
  const int64_t windows = shape.images * shape.h.out * shape.w.out;
  for (int64_t o = grid_index() / kWarp; o < windows; o += grid_step() / kWarp) {
    const int64_t row = shape.w.by_out.divide(o), image = shape.h.by_out.divide(row);
    const auto h = shape.h.window(static_cast<int>(row - image * shape.h.out));
    const auto w = shape.w.window(static_cast<int>(o - row * shape.w.out));
    const int width = w.last - w.first;
    const T* from = x + (image * shape.h.in + h.first) * shape.w.in + w.first;
    A sum = 0;
    if (width == shape.w.in) {  // whole rows: one run
      const int64_t n = static_cast<int64_t>(h.last - h.first) * width;
      for (int64_t i = lane_id(); i < n; i += kWarp) sum += static_cast<A>(from[i]);
    } else {
      for (int i = h.first; i < h.last; ++i, from += shape.w.in) {
        for (int j = lane_id(); j < width; j += kWarp) sum += static_cast<A>(from[j]);
      }
    }
    sum = warp_reduce(sum, Sum());
    if (lane_id() == 0) y[o] = T(sum / shape.divisor<A>(h, w));
  }
}

/// Windows for blocks of `wide` vectors of channels; the other threads share the pixels.
struct SharedWindows {
  int64_t windows;
  int wide, groups;  ///< groups: blocks for the channels of a window

  SharedWindows(const PoolShape& shape, int width)
      : windows(shape.images * shape.h.out * shape.w.out) {
    constexpr int64_t kEnough = 512;
    const int least = width == 1 ? 16 : 4;  // at least 32 bytes in a row
    const int vectors = shape.channels / width;
    wide = power_of_two_from(vectors, kWarp);
    while (wide > least && windows * ceil_div(vectors, wide) < kEnough) wide /= 2;
    groups = static_cast<int>(ceil_div(vectors, wide));
  }
  int64_t items() const { return windows * groups; }
};

template <class A, int V>
struct AddVectors {
  __device__ Vec<A, V> operator()(const Vec<A, V>& a, const Vec<A, V>& b) const {
    Vec<A, V> sum;
#pragma unroll
    for (int k = 0; k < V; ++k) sum.v[k] = a.v[k] + b.v[k];
    return sum;
  }
};

/// The sum of this thread's pixels of a window: every `deep`-th from `place` on. `from`: the image.
template <class T, int V>
__device__ __forceinline__ Vec<compute_t<T>, V> sum_pixels(const T* from, const PoolShape& shape,
                                                           const PoolAxis::Window& h,
                                                           const PoolAxis::Window& w,
                                                           const ColumnPlace& at) {
  Vec<compute_t<T>, V> sum = {};
  const int width = w.last - w.first, height = h.last - h.first;
  if (width <= 0 || height <= 0) return sum;
  const int skip = at.deep % width;
  const int64_t step = int64_t{at.deep / width} * shape.w.in + skip;
  int column = at.place % width;
  int64_t pixel = int64_t{h.first + at.place / width} * shape.w.in + w.first + column;
  const int64_t pixels = int64_t{width} * height;
#pragma unroll 4
  for (int64_t i = at.place; i < pixels; i += at.deep) {
    const Vec<T, V> v = load_vec<V>(from + pixel * shape.channels);
#pragma unroll
    for (int k = 0; k < V; ++k) sum.v[k] += static_cast<compute_t<T>>(v.v[k]);
    column += skip;
    pixel += step;
    if (column >= width) {
      column -= width;
      pixel += shape.w.in - width;
    }
  }
  return sum;
}

/// One window and some channels per block.
template <class T, int V>
__global__ void __launch_bounds__(kPoolThreads, 4)
    block_avg_pool(const T* x, PoolShape shape, SharedWindows work, int64_t items, T* y) {
  using A = compute_t<T>;
  static_assert(kPoolThreads == kColumnThreads);
  __shared__ Vec<A, V> shared[kPoolThreads];
  const ColumnPlace at(work.wide, false);
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int64_t o = item / work.groups, row = shape.w.by_out.divide(o);
    const int64_t image = shape.h.by_out.divide(row);
    const auto h = shape.h.window(static_cast<int>(row - image * shape.h.out));
    const auto w = shape.w.window(static_cast<int>(o - row * shape.w.out));
    const int c = (static_cast<int>(item - o * work.groups) * work.wide + at.column) * V;
    Vec<A, V> sum = {};
    if (c < shape.channels) {
      const T* from = x + image * shape.h.in * shape.w.in * shape.channels + c;
      sum = sum_pixels<T, V>(from, shape, h, w, at);
    }
    sum = reduce_column(sum, at, shared, AddVectors<A, V>());
    if (at.place != 0 || c >= shape.channels) continue;
    const A divisor = shape.divisor<A>(h, w);
    Vec<T, V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) out.v[k] = T(sum.v[k] / divisor);
    store_vec(y + o * shape.channels + c, out);
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kPoolThreads, 4)
    avg_pool_backward(const T* gy, PoolShape shape, PoolGrid grid, T* gx) {
  using A = compute_t<T>;
  const int channels = shape.channels;
  for_pixels<V>(grid, [&](int64_t row, int w, int c) {
    const int64_t image = shape.h.by_in.divide(row);
    const int h = static_cast<int>(row - image * shape.h.in);
    const auto rows = shape.h.covering(h), columns = shape.w.covering(w);
    A sum[V] = {};
    for (int oh = rows.from; oh < rows.until; ++oh) {
      const auto y_window = shape.h.window(oh);
      for (int ow = columns.from; ow < columns.until; ++ow) {
        const A scale = A(1) / shape.divisor<A>(y_window, shape.w.window(ow));
        const int64_t o = ((image * shape.h.out + oh) * shape.w.out + ow) * channels + c;
        const Vec<T, V> g = load_vec<V>(gy + o);
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = mul_add(static_cast<A>(g.v[k]), scale, sum[k]);
      }
    }
    Vec<T, V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) out.v[k] = T(sum[k]);
    store_vec(gx + (row * shape.w.in + w) * channels + c, out);
  });
}

}  // namespace

void avg_pool2d(const Tensor& x_in, const Pool2dOptions& options, const Tensor& y_in,
                Stream stream) {
  constexpr int64_t kFewVectors = 1 << 15;  // threads that would not hide the latency of memory
  const PoolShape shape(x_in, y_in, options);
  // Numbers per window, about.
  const int64_t area = options.adaptive
                           ? x_in.sizes()[2] * x_in.sizes()[3] / (y_in.sizes()[2] * y_in.sizes()[3])
                           : options.kernel_h * options.kernel_w;
  visit_floating(x_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = static_cast<const T*>(x_in.data());
    T* y = static_cast<T*>(y_in.data());
    if (shape.channels == 1 && area >= kWarp) {
      launch(warp_avg_pool<T>, blocks_for(y_in.numel(), kPoolThreads / kWarp, stream), kPoolThreads,
             0, stream, x, shape, y);
      return;
    }
    visit_pool_width<T>(shape, {x, y}, [&](auto width) {
      if (area >= kWarp && y_in.numel() / width <= kFewVectors) {
        const SharedWindows work(shape, width);
        launch(block_avg_pool<T, width>, blocks_for(work.items(), 1, stream), kPoolThreads, 0,
               stream, x, shape, work, work.items(), y);
        return;
      }
      const PoolGrid grid(shape.images * shape.h.out, shape.w.out, shape.channels, width);
      launch(avg_pool<T, width>, grid.blocks(stream), kPoolThreads, 0, stream, x, shape, grid, y);
    });
  });
}

void avg_pool2d_backward(const Tensor& gy_in, const Pool2dOptions& options, const Tensor& gx_in,
                         Stream stream) {
  const PoolShape shape(gx_in, gy_in, options);
  visit_floating(gx_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* gy = static_cast<const T*>(gy_in.data());
    T* gx = static_cast<T*>(gx_in.data());
    visit_pool_width<T>(shape, {gy, gx}, [&](auto width) {
      const PoolGrid grid(shape.images * shape.h.in, shape.w.in, shape.channels, width);
      launch(avg_pool_backward<T, width>, grid.blocks(stream), kPoolThreads, 0, stream, gy, shape,
             grid, gx);
    });
  });
}

}  // namespace tarn::cuda
