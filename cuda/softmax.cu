// softmax.cu - softmax and log_softmax with their gradients, along any dimension.
//
// x - max - log(sum) in this order, as on the CPU, so that large logits lose nothing. Along the
// last dimension some lanes, a warp or a block take a row: one pass finds maximum and sum together
// (row.cuh), the next writes; the second read comes from the caches up to rows of about 100 KB.
// Along another dimension threads lie across the columns (columns.cuh). Bytes per element: one read
// and one write of size(T) forward, two reads and one write backward, besides what the caches
// serve.
#include "tarn/core/kernels.h"
#include "tarn/cuda/columns.cuh"
#include "tarn/cuda/row.cuh"
#include "tarn/cuda/softmax.h"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

/// y from x and the statistics of its row.
template <class A>
struct SoftmaxValue {
  bool log;
  A max, factor;  ///< log: log(sum); else 1 / sum

  __device__ SoftmaxValue(const MaxSum<A>& s, bool log_in)
      : log(log_in), max(s.max), factor(log_in ? math::log(s.sum) : A(1) / s.sum) {}
  __device__ __forceinline__ A operator()(A x) const {
    return log ? x - max - factor : math::exp(x - max) * factor;
  }
};

template <class T>
__global__ void __launch_bounds__(kRowBlock, 3)
    softmax_rows(const T* x, T* y, int64_t rows, int64_t n, bool log, int group, bool vectors) {
  using A = compute_t<T>;
  __shared__ MaxSum<A> shared[kWarp];
  const RowPlace place(group);
  for (int64_t row = place.first; row < rows; row += place.step) {
    const T* from = x + row * n;
    T* to = y + row * n;
    MaxSum<A> stats = MaxSum<A>::none();
    for_row(OneRow<T>{from}, n, place.thread, group, vectors,
            [&](const auto& values, int64_t) { stats.add(values); });
    stats = reduce_row(stats, MaxSum<A>::none(), group, shared, JoinMaxSum());
    const SoftmaxValue<A> value(stats, log);
    for_row(OneRow<T>{from}, n, place.thread, group, vectors, [&](auto values, int64_t at) {
      for (T& v : values.v) v = T(value(cast_value<A>(v)));
      store_vec(to + at, values);
    });
  }
}

template <class T>
__global__ void __launch_bounds__(kColumnThreads, 3)
    softmax_columns(const T* x, T* y, int64_t columns, int64_t n, int64_t inner, bool log,
                    int wide) {
  using A = compute_t<T>;
  constexpr int kAtOnce = 4;
  __shared__ MaxSum<A> shared[kColumnThreads];
  const ColumnPlace place(wide, false);
  for (int64_t first = int64_t{blockIdx.x} * wide; first < columns;
       first += int64_t{gridDim.x} * wide) {
    const int64_t column = first + place.column, outer = column / inner;
    const int64_t base = outer * n * inner + (column - outer * inner);
    const int64_t end = column < columns ? n : 0;
    MaxSum<A> stats = MaxSum<A>::none();
    int64_t i = place.place;
    for (; i + (kAtOnce - 1) * place.deep < end; i += kAtOnce * place.deep) {
      Vec<T, kAtOnce> values;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) values.v[j] = x[base + (i + j * place.deep) * inner];
      stats.add(values);
    }
    for (; i < end; i += place.deep) stats.add(load_vec<1>(x + base + i * inner));
    stats = reduce_column(stats, place, shared, JoinMaxSum());
    const SoftmaxValue<A> value(stats, log);
#pragma unroll 4
    for (i = place.place; i < end; i += place.deep) {
      const int64_t at = base + i * inner;
      y[at] = T(value(cast_value<A>(x[at])));
    }
  }
}

/// gx from gy, y and the row's sum of gy (log) or gy * y.
template <class A>
__device__ __forceinline__ A softmax_gradient(bool log, A g, A y, A sum) {
  return log ? g - math::exp(y) * sum : y * (g - sum);
}

template <class T>
__global__ void __launch_bounds__(kRowBlock, 3)
    backward_rows(const T* gy, const T* y, T* gx, int64_t rows, int64_t n, bool log, int group,
                  bool vectors) {
  using A = compute_t<T>;
  __shared__ A shared[kWarp];
  const RowPlace place(group);
  for (int64_t row = place.first; row < rows; row += place.step) {
    const T* g_row = gy + row * n;
    const T* y_row = y + row * n;
    T* to = gx + row * n;
    A sum = 0;
    for_row(TwoRows<T>{g_row, y_row}, n, place.thread, group, vectors,
            [&](const auto& gy_y, int64_t) {
              constexpr int N = std::decay_t<decltype(gy_y)>::kCount;
#pragma unroll
              for (int i = 0; i < N; ++i) {
                const A g_i = cast_value<A>(gy_y.a.v[i]);
                sum += log ? g_i : g_i * cast_value<A>(gy_y.b.v[i]);
              }
            });
    sum = reduce_row(sum, A(0), group, shared, Sum());
    for_row(TwoRows<T>{g_row, y_row}, n, place.thread, group, vectors,
            [&](const auto& gy_y, int64_t at) {
              constexpr int N = std::decay_t<decltype(gy_y)>::kCount;
              Vec<T, N> out;
#pragma unroll
              for (int i = 0; i < N; ++i) {
                out.v[i] = T(softmax_gradient(log, cast_value<A>(gy_y.a.v[i]),
                                              cast_value<A>(gy_y.b.v[i]), sum));
              }
              store_vec(to + at, out);
            });
  }
}

template <class T>
__global__ void __launch_bounds__(kColumnThreads, 3)
    backward_columns(const T* gy, const T* y, T* gx, int64_t columns, int64_t n, int64_t inner,
                     bool log, int wide) {
  using A = compute_t<T>;
  __shared__ A shared[kColumnThreads];
  const ColumnPlace place(wide, false);
  for (int64_t first = int64_t{blockIdx.x} * wide; first < columns;
       first += int64_t{gridDim.x} * wide) {
    const int64_t column = first + place.column, outer = column / inner;
    const int64_t base = outer * n * inner + (column - outer * inner);
    const int64_t end = column < columns ? n : 0;
    A sum = 0;
#pragma unroll 4
    for (int64_t i = place.place; i < end; i += place.deep) {
      const int64_t at = base + i * inner;
      sum += log ? cast_value<A>(gy[at]) : cast_value<A>(gy[at]) * cast_value<A>(y[at]);
    }
    sum = reduce_column(sum, place, shared, Sum());
#pragma unroll 4
    for (int64_t i = place.place; i < end; i += place.deep) {
      const int64_t at = base + i * inner;
      gx[at] = T(softmax_gradient(log, cast_value<A>(gy[at]), cast_value<A>(y[at]), sum));
    }
  }
}

void softmax(const Tensor& x_in, int64_t dim, bool log, const Tensor& y_in, Stream stream) {
  const Extents e(x_in, dim);
  visit_floating(x_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = static_cast<const T*>(x_in.data());
    T* y = static_cast<T*>(y_in.data());
    if (e.inner == 1) {
      const int group = row_threads(e.n);
      launch(softmax_rows<T>, blocks_for(e.outer, kRowBlock / group, stream), kRowBlock, 0, stream,
             x, y, e.outer, e.n, log, group, alike(x, static_cast<const T*>(y)));
    } else {
      const int wide = columns_per_block(e.columns(), e.n, false);
      launch(softmax_columns<T>, blocks_for(e.columns(), wide, stream), kColumnThreads, 0, stream,
             x, y, e.columns(), e.n, e.inner, log, wide);
    }
  });
}

void softmax_backward(const Tensor& gy_in, const Tensor& y_in, int64_t dim, bool log,
                      const Tensor& gx_in, Stream stream) {
  const Extents e(y_in, dim);
  visit_floating(y_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *gy = static_cast<const T*>(gy_in.data()), *y = static_cast<const T*>(y_in.data());
    T* gx = static_cast<T*>(gx_in.data());
    if (e.inner == 1) {
      const int group = row_threads(e.n);
      const bool vectors = alike(gy, y) && alike(gy, static_cast<const T*>(gx));
      launch(backward_rows<T>, blocks_for(e.outer, kRowBlock / group, stream), kRowBlock, 0, stream,
             gy, y, gx, e.outer, e.n, log, group, vectors);
    } else {
      const int wide = columns_per_block(e.columns(), e.n, false);
      launch(backward_columns<T>, blocks_for(e.columns(), wide, stream), kColumnThreads, 0, stream,
             gy, y, gx, e.columns(), e.n, e.inner, log, wide);
    }
  });
}

}  // namespace

void add_softmax_kernels(KernelTable& table) {
  table.softmax.softmax = softmax;
  table.softmax.softmax_backward = softmax_backward;
  table.softmax.cross_entropy = cross_entropy;
  table.softmax.cross_entropy_backward = cross_entropy_backward;
}

}  // namespace tarn::cuda
