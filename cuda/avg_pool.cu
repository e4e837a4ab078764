// avg_pool.cu - average pooling, plain and adaptive, and its gradient.
//
// As pool.cu; sums are in the compute type and rounded once. Large windows over row-major planes (a
// global average) are adjacent memory: there a warp shares the window, so that reads are coalesced.
#include "tarn/core/mul_add.h"
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
