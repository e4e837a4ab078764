// softmax.cpp - softmax and log_softmax with their gradients, on the CPU.
//
// x - max - log(sum(exp(x - max))) in this order, so that large logits lose nothing. Along the last
// dimension a row stays in cache for its three passes; along another, tiles of columns do.
#include "tarn/core/cpu/softmax.h"

#include <vector>

#include "tarn/core/cpu/table.h"
#include "tarn/core/kernels.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kTile = 256;  // columns at a time when the dimension is not the last

/// Sizes around the dimension: x is [outer, n, inner].
struct Extents {
  int64_t outer = 1, n = 1, inner = 1;
};

Extents extents(const Tensor& x, int64_t dim) {
  Extents e;
  for (int d = 0; d < x.dim(); ++d) {
    (d < dim ? e.outer : d > dim ? e.inner : e.n) *= x.sizes()[d];
  }
  return e;
}

template <class T, class A = compute_t<T>>
void softmax_row(const T* __restrict x, int64_t n, bool log, A* scratch, T* __restrict y) {
  const A max = fold_chunk(MaxOp<T>(), x, n);
  const double sum = sum_exp<T>(x, n, max, log ? static_cast<A*>(nullptr) : scratch);
  if (log) {
    const A log_sum = static_cast<A>(std::log(sum));
    for (int64_t i = 0; i < n; ++i) y[i] = T(to<A>(x[i]) - max - log_sum);
  } else {
    const A scale = static_cast<A>(1 / sum);
    const A* __restrict e = scratch;
    for (int64_t i = 0; i < n; ++i) y[i] = T(e[i] * scale);
  }
}

template <class T, class A = compute_t<T>>
void softmax_tile(const T* x, int64_t n, int64_t inner, int64_t width, bool log, T* y) {
  A max[kTile], sum[kTile];
  const MaxOp<T> op;
  for (int64_t c = 0; c < width; ++c) max[c] = op.init(), sum[c] = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T* __restrict row = x + i * inner;
    for (int64_t c = 0; c < width; ++c) max[c] = op.step(max[c], to<A>(row[c]));
  }
  for (int64_t i = 0; i < n; ++i) {
    const T* __restrict row = x + i * inner;
    for (int64_t c = 0; c < width; ++c) sum[c] += math::exp(to<A>(row[c]) - max[c]);
  }
  for (int64_t c = 0; c < width; ++c) sum[c] = log ? math::log(sum[c]) : 1 / sum[c];
  for (int64_t i = 0; i < n; ++i) {
    const T* __restrict row = x + i * inner;
    T* __restrict out = y + i * inner;
    if (log) {
      for (int64_t c = 0; c < width; ++c) out[c] = T(to<A>(row[c]) - max[c] - sum[c]);
    } else {
      for (int64_t c = 0; c < width; ++c) out[c] = T(math::exp(to<A>(row[c]) - max[c]) * sum[c]);
    }
  }
}

template <class T, class A = compute_t<T>>
void backward_row(const T* __restrict gy, const T* __restrict y, int64_t n, bool log,
                  T* __restrict gx) {
  using V = Vec<A>;
  constexpr int L = kLanes<A>;
  V acc{};
  int64_t i = 0;
  for (; i + L <= n; i += L) {
    const V g = load<A>(gy + i);
    acc += log ? g : g * load<A>(y + i);
  }
  A sum = sum_lanes(acc);
  for (; i < n; ++i) sum += log ? to<A>(gy[i]) : to<A>(gy[i]) * to<A>(y[i]);
  if (log) {
    for (i = 0; i < n; ++i) gx[i] = T(to<A>(gy[i]) - math::exp(to<A>(y[i])) * sum);
  } else {
    for (i = 0; i < n; ++i) gx[i] = T(to<A>(y[i]) * (to<A>(gy[i]) - sum));
  }
}

template <class T, class A = compute_t<T>>
void backward_tile(const T* gy, const T* y, int64_t n, int64_t inner, int64_t width, bool log,
                   T* gx) {
  A sum[kTile] = {};
  for (int64_t i = 0; i < n; ++i) {
    const T* __restrict g = gy + i * inner, * __restrict p = y + i * inner;
    for (int64_t c = 0; c < width; ++c) sum[c] += log ? to<A>(g[c]) : to<A>(g[c]) * to<A>(p[c]);
  }
  for (int64_t i = 0; i < n; ++i) {
    const T* __restrict g = gy + i * inner, * __restrict p = y + i * inner;
    T* __restrict out = gx + i * inner;
    if (log) {
      for (int64_t c = 0; c < width; ++c) {
        out[c] = T(to<A>(g[c]) - math::exp(to<A>(p[c])) * sum[c]);
      }
    } else {
      for (int64_t c = 0; c < width; ++c) out[c] = T(to<A>(p[c]) * (to<A>(g[c]) - sum[c]));
    }
  }
}

/// Calls row(offset) for rows, or tile(offset, width) for tiles of columns.
template <class Row, class Tile>
void for_slices(const Extents& e, Row&& row, Tile&& tile) {
  if (e.inner == 1) {
    parallel_for(e.outer, grain_for(4 * e.n), [&](int64_t begin, int64_t end) { row(begin, end); });
    return;
  }
  const int64_t tiles = (e.inner + kTile - 1) / kTile;
  const int64_t work = 4 * e.n * std::min(kTile, e.inner);
  parallel_for(e.outer * tiles, grain_for(work), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = i % tiles * kTile;
      tile(i / tiles * e.n * e.inner + at, std::min(kTile, e.inner - at));
    }
  });
}

void softmax(const Tensor& x_in, int64_t dim, bool log, const Tensor& y_in, Stream) {
  const Extents e = extents(x_in, dim);
  visit_floating(x_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = static_cast<const T*>(x_in.data());
    T* y = static_cast<T*>(y_in.data());
    for_slices(
        e,
        [&](int64_t begin, int64_t end) {
          std::vector<compute_t<T>> scratch(static_cast<size_t>(log ? 0 : e.n));
          for (int64_t r = begin; r < end; ++r) {
            softmax_row(x + r * e.n, e.n, log, scratch.data(), y + r * e.n);
          }
        },
        [&](int64_t at, int64_t width) { softmax_tile(x + at, e.n, e.inner, width, log, y + at); });
  });
}

void softmax_backward(const Tensor& gy_in, const Tensor& y_in, int64_t dim, bool log,
                      const Tensor& gx_in, Stream) {
  const Extents e = extents(y_in, dim);
  visit_floating(y_in.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *gy = static_cast<const T*>(gy_in.data()), *y = static_cast<const T*>(y_in.data());
    T* gx = static_cast<T*>(gx_in.data());
    for_slices(
        e,
        [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            backward_row(gy + r * e.n, y + r * e.n, e.n, log, gx + r * e.n);
          }
        },
        [&](int64_t at, int64_t width) {
          backward_tile(gy + at, y + at, e.n, e.inner, width, log, gx + at);
        });
  });
}

}  // namespace

void add_softmax_kernels(KernelTable& table) {
  table.softmax.softmax = softmax;
  table.softmax.softmax_backward = softmax_backward;
  table.softmax.cross_entropy = cross_entropy;
  table.softmax.cross_entropy_backward = cross_entropy_backward;
}

}  // namespace tarn::cpu
