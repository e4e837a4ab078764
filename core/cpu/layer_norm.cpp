// layer_norm.cpp - layer norm and RMS norm over rows, forward and backward, on the CPU.
//
// A row stays in cache while it is read for the statistics and again for the result; a residual is
// added on the way. Gradients of weight and bias are summed in blocks of rows (f32), the blocks in
// double. RMS norm is layer norm with a mean of 0 (source: Zhang and Sennrich 2019,
// arXiv:1910.07467).
#include <cmath>
#include <memory>

#include "tarn/core/cpu/batch_norm.h"
#include "tarn/core/cpu/moments.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kBlockRows = 64;

template <class T>
void normalise_row(const T* __restrict x, int64_t n, compute_t<T> mean, compute_t<T> rstd,
                   const compute_t<T>* __restrict weight, const compute_t<T>* __restrict bias,
                   T* __restrict y) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = T(mul_add((to<compute_t<T>>(x[i]) - mean) * rstd, weight[i], bias[i]));
  }
}

template <class A>
struct RowSums {
  A g, dot;  // of gy * weight, and of that times xhat
};

// Sums over a row, and the row's share of the gradients of weight and bias.
template <class T, class A = compute_t<T>>
RowSums<A> sum_row(const T* gy, const T* x, int64_t n, A mean, A rstd, const A* weight, A* gweight,
                   A* gbias) {
  using V = Vec<A>;
  constexpr int L = kLanes<A>;
  V g{}, dot{};
  int64_t i = 0;
  for (; i + L <= n; i += L) {
    const V go = load<A>(gy + i), xhat = (load<A>(x + i) - mean) * rstd;
    const V gw = go * load<A>(weight + i);
    g += gw;
    dot += gw * xhat;
    const V w = load<A>(gweight + i) + go * xhat, b = load<A>(gbias + i) + go;
    std::memcpy(gweight + i, &w, sizeof(w));
    std::memcpy(gbias + i, &b, sizeof(b));
  }
  RowSums<A> sums{sum_lanes(g), sum_lanes(dot)};
  for (; i < n; ++i) {
    const A go = to<A>(gy[i]), xhat = (to<A>(x[i]) - mean) * rstd, gw = go * weight[i];
    sums.g += gw;
    sums.dot += gw * xhat;
    gweight[i] += go * xhat;
    gbias[i] += go;
  }
  return sums;
}

/// a, b: what the statistics' gradients take off. gsum: added, unless null.
template <class T, class A = compute_t<T>>
void gradient_row(const T* __restrict gy, const T* __restrict gsum, const T* __restrict x,
                  int64_t n, A mean, A rstd, const A* __restrict weight, A a, A b,
                  T* __restrict gx) {
  if (gsum == nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      const A xhat = (to<A>(x[i]) - mean) * rstd;
      gx[i] = T(rstd * (to<A>(gy[i]) * weight[i] - a - xhat * b));
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const A xhat = (to<A>(x[i]) - mean) * rstd;
      gx[i] = T(to<A>(gsum[i]) + rstd * (to<A>(gy[i]) * weight[i] - a - xhat * b));
    }
  }
}

template <class T>
void add_rows(const T* __restrict x, const T* __restrict y, int64_t n, T* __restrict sum) {
  using A = compute_t<T>;
  for (int64_t i = 0; i < n; ++i) sum[i] = T(to<A>(x[i]) + to<A>(y[i]));
}

/// Mean and mean squared deviation of a row; of RMS norm 0 and the mean square.
template <class T>
std::pair<double, double> row_statistics(const T* row, int64_t n, bool centred) {
  Moments m;
  double squares = 0;
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    if (centred) {
      m.merge(chunk_moments(row + i, count));
    } else {
      squares += fold_chunk(SquareSumOp<T>(), row + i, count);
    }
  }
  return {m.mean, (centred ? m.m2 : squares) / static_cast<double>(n)};
}

template <class A>
void store_sums(const std::vector<A>& parts, int64_t blocks, int64_t stride, int64_t at,
                const Tensor& to_tensor) {
  if (!to_tensor.defined()) return;
  visit_floating(to_tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = static_cast<T*>(to_tensor.data());
    for (int64_t i = 0; i < to_tensor.numel(); ++i) {
      double sum = 0;
      for (int64_t b = 0; b < blocks; ++b) sum += parts[b * stride + at + i];
      out[i] = T(static_cast<compute_t<T>>(sum));
    }
  });
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                double eps, const Tensor& sum, const Tensor& y, const Tensor& mean,
                const Tensor& rstd, Stream) {
  const int64_t rows = x.sizes()[0], n = x.sizes()[1];
  const bool centred = mean.defined();
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    const std::vector<A> w = row_values<A>(channel_values(weight, n, 1), 1);
    const std::vector<A> b = row_values<A>(channel_values(bias, n, 0), 1);
    parallel_for(rows, grain_for(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = static_cast<const T*>(x.data()) + r * n;
        if (residual.defined()) {
          T* total = static_cast<T*>(sum.data()) + r * n;
          add_rows(row, static_cast<const T*>(residual.data()) + r * n, n, total);
          row = total;
        }
        const auto [mu, deviation] = row_statistics(row, n, centred);
        const A scale = static_cast<A>(1 / std::sqrt(deviation + eps));
        if (centred) static_cast<A*>(mean.data())[r] = static_cast<A>(mu);
        static_cast<A*>(rstd.data())[r] = scale;
        normalise_row(row, n, static_cast<A>(mu), scale, w.data(), b.data(),
                      static_cast<T*>(y.data()) + r * n);
      }
    });
  });
}

void layer_norm_backward(const Tensor& gy, const Tensor& gsum, const Tensor& x,
                         const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                         const Tensor& gx, const Tensor& gweight, const Tensor& gbias, Stream) {
  const int64_t rows = x.sizes()[0], n = x.sizes()[1];
  const bool centred = mean.defined();
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    const std::vector<A> w = row_values<A>(channel_values(weight, n, 1), 1);
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    std::vector<A> parts(static_cast<size_t>(blocks * 2 * n));
    const auto row_of = [n](const Tensor& t, int64_t r) {
      return t.defined() ? static_cast<T*>(t.data()) + r * n : nullptr;
    };
    parallel_for(blocks, grain_for(kBlockRows * n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin * kBlockRows; r < std::min(rows, end * kBlockRows); ++r) {
        const T *g = row_of(gy, r), *in = row_of(x, r);
        const A mu = centred ? static_cast<const A*>(mean.data())[r] : A(0);
        const A scale = static_cast<const A*>(rstd.data())[r], count = static_cast<A>(n);
        A* part = &parts[r / kBlockRows * 2 * n];
        const RowSums<A> sums = sum_row<T>(g, in, n, mu, scale, w.data(), part, part + n);
        if (gx.defined()) {
          gradient_row<T>(g, row_of(gsum, r), in, n, mu, scale, w.data(),
                          centred ? sums.g / count : A(0), sums.dot / count, row_of(gx, r));
        }
      }
    });
    store_sums(parts, blocks, 2 * n, 0, gweight);
    store_sums(parts, blocks, 2 * n, n, gbias);
  });
}

}  // namespace tarn::cpu
