// pool.cu - max pooling and its gradient.
//
// One thread per V results; windows overlap in cache. Bytes per result: kernel_h * kernel_w reads
// of x (from memory once, as long as a few rows stay in cache), one write and one index. The
// gradient is gathered: each element of gx asks the windows that cover it, in their order, so the
// result does not depend on the order of threads.
#include <limits>

#include "tarn/core/kernels.h"
#include "tarn/cuda/pool.h"
#include "tarn/cuda/pool_windows.cuh"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

/// V indices, in pieces of 16 bytes at most.
template <int V, class I>
__device__ __forceinline__ void store_indices(I* to, const I (&index)[V]) {
  constexpr int kStep = V < kVecWidth<I> ? V : kVecWidth<I>;
#pragma unroll
  for (int k = 0; k < V; k += kStep) {
    Vec<I, kStep> v;
#pragma unroll
    for (int j = 0; j < kStep; ++j) v.v[j] = index[k + j];
    store_vec(to + k, v);
  }
}
template <int V, class I>
__device__ __forceinline__ void load_indices(const I* from, I (&index)[V]) {
  constexpr int kStep = V < kVecWidth<I> ? V : kVecWidth<I>;
#pragma unroll
  for (int k = 0; k < V; k += kStep) {
    const Vec<I, kStep> v = load_vec<kStep>(from + k);
#pragma unroll
    for (int j = 0; j < kStep; ++j) index[k + j] = v.v[j];
  }
}

template <class T, class I, int V>
__global__ void __launch_bounds__(kPoolThreads, 4)
    max_pool(const T* x, PoolShape shape, PoolGrid grid, T* y, I* index) {
  using A = compute_t<T>;
  const int channels = shape.channels, width = shape.w.in;
  for_pixels<V>(grid, [&](int64_t row, int ow, int c) {
    const int64_t image = shape.h.by_out.divide(row);
    const auto h = shape.h.window(static_cast<int>(row - image * shape.h.out));
    const auto w = shape.w.window(ow);
    const T* from = x + image * shape.h.in * width * channels + c;
    Vec<T, V> best;
    I at[V];
#pragma unroll
    for (int k = 0; k < V; ++k) {
      best.v[k] = T(-std::numeric_limits<A>::infinity());
      at[k] = static_cast<I>(static_cast<int64_t>(h.first) * width + w.first);
    }
    for (int i = h.first; i < h.last; i += shape.h.step) {
      for (int j = w.first; j < w.last; j += shape.w.step) {
        const int64_t here = static_cast<int64_t>(i) * width + j;
        const Vec<T, V> v = load_vec<V>(from + here * channels);
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const A value = static_cast<A>(v.v[k]);
          if (value > static_cast<A>(best.v[k]) || value != value) {
            best.v[k] = v.v[k];
            at[k] = static_cast<I>(here);
          }
        }
      }
    }
    const int64_t to = (row * shape.w.out + ow) * channels + c;
    store_vec(y + to, best);
    store_indices<V>(index + to, at);
  });
}

template <class T, class I, int V>
__global__ void __launch_bounds__(kPoolThreads, 4)
    max_pool_backward(const T* gy, const I* index, PoolShape shape, PoolGrid grid, T* gx) {
  using A = compute_t<T>;
  const int channels = shape.channels;
  for_pixels<V>(grid, [&](int64_t row, int w, int c) {
    const int64_t image = shape.h.by_in.divide(row);
    const int h = static_cast<int>(row - image * shape.h.in);
    const I here = static_cast<I>(static_cast<int64_t>(h) * shape.w.in + w);
    const auto rows = shape.h.covering(h), columns = shape.w.covering(w);
    A sum[V] = {};
    for (int oh = rows.from; oh < rows.until; ++oh) {
      for (int ow = columns.from; ow < columns.until; ++ow) {
        const int64_t o = ((image * shape.h.out + oh) * shape.w.out + ow) * channels + c;
        I at[V];
        load_indices<V>(index + o, at);
        const Vec<T, V> g = load_vec<V>(gy + o);
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += at[k] == here ? static_cast<A>(g.v[k]) : A(0);
      }
    }
    Vec<T, V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) out.v[k] = T(sum[k]);
    store_vec(gx + (row * shape.w.in + w) * channels + c, out);
  });
}

template <class F>
void visit_index(DType dtype, F f) {
  dtype == DType::kI32 ? f(TypeTag<int32_t>{}) : f(TypeTag<int64_t>{});
}

void max_pool2d(const Tensor& x, const Pool2dOptions& options, const Tensor& y, const Tensor& index,
                Stream stream) {
  const PoolShape shape(x, y, options);
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_index(index.dtype(), [&](auto index_tag) {
      using I = typename decltype(index_tag)::type;
      visit_pool_width<T>(shape, {x.data(), y.data(), index.data()}, [&](auto width) {
        const PoolGrid grid(shape.images * shape.h.out, shape.w.out, shape.channels, width);
        launch(max_pool<T, I, width>, grid.blocks(stream), kPoolThreads, 0, stream,
               static_cast<const T*>(x.data()), shape, grid, static_cast<T*>(y.data()),
               static_cast<I*>(index.data()));
      });
    });
  });
}

void max_pool2d_backward(const Tensor& gy, const Tensor& index, const Pool2dOptions& options,
                         const Tensor& gx, Stream stream) {
  const PoolShape shape(gx, gy, options);
  visit_floating(gx.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_index(index.dtype(), [&](auto index_tag) {
      using I = typename decltype(index_tag)::type;
      visit_pool_width<T>(shape, {gy.data(), gx.data(), index.data()}, [&](auto width) {
        const PoolGrid grid(shape.images * shape.h.in, shape.w.in, shape.channels, width);
        launch(max_pool_backward<T, I, width>, grid.blocks(stream), kPoolThreads, 0, stream,
               static_cast<const T*>(gy.data()), static_cast<const I*>(index.data()), shape, grid,
               static_cast<T*>(gx.data()));
      });
    });
  });
}

}  // namespace

void add_pool_kernels(KernelTable& table) {
  table.pool.max_pool2d = max_pool2d;
  table.pool.max_pool2d_backward = max_pool2d_backward;
  table.pool.avg_pool2d = avg_pool2d;
  table.pool.avg_pool2d_backward = avg_pool2d_backward;
}

}  // namespace tarn::cuda
