// layer_norm.cu - layer norm and RMS norm over rows: forward.
//
// RMS norm is layer norm with a mean of 0. A residual is added while a row is read first.
// Rows of up to 1024 numbers are kept in the registers of a warp (1 read, 1 write per element);
// longer or unaligned rows go through a block, which reads them again from cache. The statistics
// are exact means of differences from a value near the mean, never E[x^2] - E[x]^2. Every order is
// fixed by the sizes.
#include <cmath>

#include "tarn/core/mul_add.h"
#include "tarn/core/squared_deviations.h"
#include "tarn/cuda/batch_norm.h"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/layer_norm_rows.cuh"

namespace tarn::cuda {
namespace {

constexpr int kWarpRow = 1024;  // numbers of a row that a warp holds

/// What a row is made of: x, or x + residual, which goes to sum.
template <class T>
struct Rows {
  const T *x, *residual;  // residual null: none
  T* sum;

  /// V numbers at `at`, in the compute type.
  template <int V>
  __device__ __forceinline__ void load(int64_t at, compute_t<T> (&out)[V]) const {
    using A = compute_t<T>;
    const Vec<T, V> in = load_vec<V>(x + at);
    if (!residual) {
#pragma unroll
      for (int k = 0; k < V; ++k) out[k] = static_cast<A>(in.v[k]);
      return;
    }
    const Vec<T, V> other = load_vec<V>(residual + at);
    Vec<T, V> total;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      total.v[k] = T(static_cast<A>(in.v[k]) + static_cast<A>(other.v[k]));
      out[k] = static_cast<A>(total.v[k]);
    }
    store_vec(sum + at, total);
  }
};

/// Weight and bias in the compute type; null: ones and zeros.
template <class A>
struct Affine {
  const A *weight, *bias;
};

/// Moments from sums of differences from `shift`; in the compute type, as they are stored. Not
/// centred: of RMS norm, with shift = 0.
template <class A>
struct RowStatistics {
  A mean, rstd;
  __device__ RowStatistics(bool centred, A shift, double sum, double squares, double n,
                           double eps) {
    const double off = centred ? sum / n : 0;
    const double m2 = centred ? squared_deviations(sum, squares, off) : squares;
    mean = static_cast<A>(shift + off);
    rstd = static_cast<A>(1 / std::sqrt((m2 < 0 ? 0 : m2) / n + eps));
  }
};

template <class T, int V>
__device__ __forceinline__ void normalise(const compute_t<T> (&x)[V],
                                          const Affine<compute_t<T>>& affine,
                                          const RowStatistics<compute_t<T>>& s, int at, T* y) {
  using A = compute_t<T>;
  A weight[V], bias[V];
  load_affine<V>(affine.weight, A(1), at, weight);
  load_affine<V>(affine.bias, A(0), at, bias);
  Vec<T, V> out;
#pragma unroll
  for (int k = 0; k < V; ++k) out.v[k] = T(mul_add((x[k] - s.mean) * s.rstd, weight[k], bias[k]));
  store_vec(y + at, out);
}

/// One row per warp.
template <class T, int V>
__global__ void __launch_bounds__(kRowThreads)
    warp_layer_norm(Rows<T> in, Affine<compute_t<T>> affine, double eps, int64_t rows, int n, T* y,
                    compute_t<T>* mean, compute_t<T>* rstd) {
  using A = compute_t<T>;
  constexpr int kSteps = kWarpRow / (kWarp * V);
  const int first = lane_id() * V;
  for (int64_t row = grid_index() / kWarp; row < rows; row += grid_step() / kWarp) {
    A v[kSteps][V];
    A sum = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = first + s * kWarp * V;
      if (at >= n) break;
      in.load(row * n + at, v[s]);
#pragma unroll
      for (int k = 0; k < V; ++k) sum += v[s][k];
    }
    const A shift = mean ? warp_reduce(sum, Sum()) / static_cast<A>(n) : A(0);
    A squares = sum = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (first + s * kWarp * V >= n) break;
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const A d = v[s][k] - shift;
        sum += d;
        squares += d * d;
      }
    }
    sum = warp_reduce(sum, Sum());
    squares = warp_reduce(squares, Sum());
    const RowStatistics<A> statistics(mean, shift, sum, squares, n, eps);
    if (lane_id() == 0) {
      if (mean) mean[row] = statistics.mean;
      rstd[row] = statistics.rstd;
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = first + s * kWarp * V;
      if (at >= n) break;
      normalise<T, V>(v[s], affine, statistics, at, y + row * n);
    }
  }
}

/// One row per block.
template <class T, int V>
__global__ void __launch_bounds__(kRowThreads)
    block_layer_norm(Rows<T> in, Affine<compute_t<T>> affine, double eps, int64_t rows, int n, T* y,
                     compute_t<T>* mean, compute_t<T>* rstd) {
  using A = compute_t<T>;
  __shared__ TwoSums scratch[kWarp];
  const int first = static_cast<int>(threadIdx.x) * V, step = kRowThreads * V;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    A sum = 0, squares = 0, v[V];
    // The mean of what the threads see first is what everything is measured from.
    TwoSums start = {0, 0};
    if (first < n) {
      in.load(row * n + first, v);
      start = {static_cast<double>(v[0]), 1.0};
    }
    start = block_reduce(start, TwoSums{}, scratch, Sum());
    const A shift = mean ? static_cast<A>(start.a / start.b) : A(0);
    for (int at = first; at < n; at += step) {
      in.load(row * n + at, v);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const A d = v[k] - shift;
        sum += d;
        squares += d * d;
      }
    }
    const TwoSums sums = block_reduce(TwoSums{sum, squares}, TwoSums{}, scratch, Sum());
    const RowStatistics<A> statistics(mean, shift, sums.a, sums.b, n, eps);
    if (threadIdx.x == 0) {
      if (mean) mean[row] = statistics.mean;
      rstd[row] = statistics.rstd;
    }
    const T* again = in.residual ? in.sum : in.x;  // a thread's own columns
    for (int at = first; at < n; at += step) {
      load_as<T, V>(again + row * n + at, v);
      normalise<T, V>(v, affine, statistics, at, y + row * n);
    }
  }
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                double eps, const Tensor& sum, const Tensor& y, const Tensor& mean,
                const Tensor& rstd, Stream stream) {
  const int64_t rows = x.sizes()[0];
  const int n = row_length(mean.defined() ? "layer_norm" : "rms_norm", x);
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    constexpr int kWidth = kVecWidth<T>;
    const InComputeType<A> w(weight, stream), b(bias, stream);
    const auto run = [&](auto kernel, unsigned blocks) {
      const Rows<T> in{static_cast<const T*>(x.data()), residual.data_or_null<T>(),
                       sum.data_or_null<T>()};
      launch(kernel, blocks, kRowThreads, 0, stream, in, Affine<A>{w.data(), b.data()}, eps, rows,
             n, static_cast<T*>(y.data()), mean.data_or_null<A>(), static_cast<A*>(rstd.data()));
    };
    if (!takes_vectors<T>(n, {&x, &residual, &sum, &weight, &bias, &y})) {
      run(block_layer_norm<T, 1>, blocks_for(rows, 1, stream));
    } else if (n > kWarpRow) {
      run(block_layer_norm<T, kWidth>, blocks_for(rows, 1, stream));
    } else {
      run(warp_layer_norm<T, kWidth>, blocks_for(rows, kRowThreads / kWarp, stream));
    }
  });
}

}  // namespace tarn::cuda
