// layer_norm.cu - layer norm and RMS norm over rows, forward and backward.
//
// RMS norm is layer norm with a mean of 0. A residual is added while a row is read first.
// Forward: rows of up to 1024 numbers are kept in the registers of a warp (1 read, 1 write per
// element); longer or unaligned rows go through a block, which reads them again from cache. The
// statistics are exact means of differences from a value near the mean, never E[x^2] - E[x]^2.
// Backward: a block takes some neighbouring rows one after the other, two reads and one write per
// element; each thread adds its columns' share of the gradients of weight and bias in shared
// memory, and a second kernel adds the blocks' shares (2 * D numbers per kPartRows rows) in f64.
// Every order is fixed by the sizes.
#include <cmath>

#include "tarn/core/mul_add.h"
#include "tarn/core/squared_deviations.h"
#include "tarn/cuda/batch_norm.h"
#include "tarn/cuda/channel_values.cuh"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/in_compute_type.cuh"
#include "tarn/cuda/scratch.h"

namespace tarn::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpRow = 1024;     // numbers of a row that a warp holds
constexpr int64_t kPartRows = 32;  // rows that a block of the backward pass adds up, at least
constexpr int64_t kMostParts = 2048;

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

template <int V, class A>
__device__ __forceinline__ void load_affine(const A* p, A fallback, int at, A (&out)[V]) {
  constexpr int kStep = V == 1 ? 1 : kVecWidth<A>;
#pragma unroll
  for (int k = 0; k < V; k += kStep) {
    if (p) {
      const Vec<A, kStep> v = load_vec<kStep>(p + at + k);
#pragma unroll
      for (int j = 0; j < kStep; ++j) out[k + j] = v.v[j];
    } else {
#pragma unroll
      for (int j = 0; j < kStep; ++j) out[k + j] = fallback;
    }
  }
}

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
__global__ void __launch_bounds__(kThreads)
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

struct TwoSums {
  double a, b;
  __device__ TwoSums operator+(const TwoSums& o) const { return {a + o.a, b + o.b}; }
};

template <class T, int V>
__device__ __forceinline__ void load_as(const T* p, compute_t<T> (&out)[V]) {
  const Vec<T, V> in = load_vec<V>(p);
#pragma unroll
  for (int k = 0; k < V; ++k) out[k] = static_cast<compute_t<T>>(in.v[k]);
}

/// One row per block.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    block_layer_norm(Rows<T> in, Affine<compute_t<T>> affine, double eps, int64_t rows, int n, T* y,
                     compute_t<T>* mean, compute_t<T>* rstd) {
  using A = compute_t<T>;
  __shared__ TwoSums scratch[kWarp];
  const int first = static_cast<int>(threadIdx.x) * V, step = kThreads * V;
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

template <class T>
struct BackwardArgs {
  using A = compute_t<T>;
  const T *gy, *gsum, *x;         // gsum null: none
  const A *weight, *mean, *rstd;  // mean null: of RMS norm
  T* gx;                          // null: not wanted
  A* parts;                       // [parts][2][n], of gweight and gbias; null: not wanted
  int64_t rows, part_rows;
  int n;
  bool shared;  // parts are added up in shared memory
};

/// gx of a part's rows, and the part's sums for gweight and gbias.
/// Four blocks a multiprocessor, so up to 64 registers: without that bound ptxas keeps to 32 and
/// spills.
template <class T, int V>
__global__ void __launch_bounds__(kThreads, 4)
    layer_norm_gradients(BackwardArgs<T> o, int64_t parts) {
  using A = compute_t<T>;
  TARN_DYNAMIC_SHARED(A, shared);
  __shared__ TwoSums scratch[kWarp];
  const int n = o.n, first = static_cast<int>(threadIdx.x) * V;
  const int step = static_cast<int>(blockDim.x) * V;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    A* const to = o.parts ? o.parts + part * 2 * n : nullptr;
    A* const sums = o.shared ? shared : to;  // [2][n]; each thread has columns of its own
    for (int at = first; to && at < n; at += step) {
#pragma unroll
      for (int k = 0; k < V; ++k) sums[at + k] = sums[n + at + k] = A(0);
    }
    const int64_t end = (part + 1) * o.part_rows < o.rows ? (part + 1) * o.part_rows : o.rows;
    for (int64_t row = part * o.part_rows; row < end; ++row) {
      const T *gy = o.gy + row * n, *x = o.x + row * n;
      const A mean = o.mean ? o.mean[row] : A(0), rstd = o.rstd[row];
      A g[V], in[V], weight[V], sum = 0, dot = 0;
      for (int at = first; at < n; at += step) {
        load_as<T, V>(gy + at, g);
        load_as<T, V>(x + at, in);
        load_affine<V>(o.weight, A(1), at, weight);
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const A xhat = (in[k] - mean) * rstd, gw = g[k] * weight[k];
          sum += gw;
          dot += gw * xhat;
          if (to) {
            sums[at + k] += g[k] * xhat;
            sums[n + at + k] += g[k];
          }
        }
      }
      if (!o.gx) continue;
      const TwoSums total = block_reduce(TwoSums{sum, dot}, TwoSums{}, scratch, Sum());
      const A a = o.mean ? static_cast<A>(total.a / n) : A(0), b = static_cast<A>(total.b / n);
      for (int at = first; at < n; at += step) {
        load_as<T, V>(gy + at, g);
        load_as<T, V>(x + at, in);
        load_affine<V>(o.weight, A(1), at, weight);
        A other[V] = {};
        if (o.gsum) load_as<T, V>(o.gsum + row * n + at, other);
        Vec<T, V> out;
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const A xhat = (in[k] - mean) * rstd;
          out.v[k] = T(other[k] + rstd * (g[k] * weight[k] - a - xhat * b));
        }
        store_vec(o.gx + row * n + at, out);
      }
    }
    for (int at = first; to && o.shared && at < n; at += step) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        to[at + k] = sums[at + k];
        to[n + at + k] = sums[n + at + k];
      }
    }
  }
}

/// gweight and gbias: column sums of parts [count][2][n]. 32 columns a block, the parts dealt out
/// to its warps.
template <class A>
__global__ void __launch_bounds__(1024)
    sum_parts(const A* parts, int64_t count, int n, ChannelResult gweight, ChannelResult gbias) {
  __shared__ double sums[kWarp][kWarp + 1];
  const int lane = lane_id(), warp = warp_id();
  for (int64_t block = blockIdx.x; block * kWarp < 2 * n; block += gridDim.x) {
    const int64_t c = block * kWarp + lane;
    double sum = 0;
    for (int64_t i = warp; c < 2 * n && i < count; i += kWarp) sum += parts[i * 2 * n + c];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && c < 2 * n) {
      sum = 0;
      for (int w = 0; w < kWarp; ++w) sum += sums[w][lane];
      c < n ? gweight.set(c, sum) : gbias.set(c - n, sum);
    }
    __syncthreads();
  }
}

template <class T, class A = compute_t<T>>
bool takes_vectors(int64_t n, std::initializer_list<const Tensor*> tensors) {
  return n % kVecWidth<T> == 0 && all_aligned(tensors);
}

/// Numbers of a row: kernels count them, and twice as many, in 32 bits.
int row_length(const char* op, const Tensor& x) {
  TARN_CHECK_AS(UnsupportedError, x.sizes()[1] < (int64_t{1} << 30), op,
                ": on cuda a row must have fewer than 2^30 numbers; got x=", x.describe());
  return static_cast<int>(x.sizes()[1]);
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
      launch(kernel, blocks, kThreads, 0, stream, in, Affine<A>{w.data(), b.data()}, eps, rows, n,
             static_cast<T*>(y.data()), mean.data_or_null<A>(), static_cast<A*>(rstd.data()));
    };
    if (!takes_vectors<T>(n, {&x, &residual, &sum, &weight, &bias, &y})) {
      run(block_layer_norm<T, 1>, blocks_for(rows, 1, stream));
    } else if (n > kWarpRow) {
      run(block_layer_norm<T, kWidth>, blocks_for(rows, 1, stream));
    } else {
      run(warp_layer_norm<T, kWidth>, blocks_for(rows, kThreads / kWarp, stream));
    }
  });
}

void layer_norm_backward(const Tensor& gy, const Tensor& gsum, const Tensor& x,
                         const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                         const Tensor& gx, const Tensor& gweight, const Tensor& gbias,
                         Stream stream) {
  const int64_t rows = x.sizes()[0];
  const int n = row_length(mean.defined() ? "layer_norm_backward" : "rms_norm_backward", x);
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    constexpr int kWidth = kVecWidth<T>;
    constexpr size_t kMostShared = 32 << 10;  // leaves room for several blocks
    const InComputeType<A> w(weight, stream);
    const bool sums = gweight.defined() || gbias.defined();
    BackwardArgs<T> o{static_cast<const T*>(gy.data()),
                      gsum.data_or_null<T>(),
                      static_cast<const T*>(x.data()),
                      w.data(),
                      mean.data_or_null<A>(),
                      static_cast<const A*>(rstd.data()),
                      gx.data_or_null<T>(),
                      nullptr,
                      rows,
                      std::max(kPartRows, ceil_div(rows, kMostParts)),
                      n,
                      false};
    const int64_t parts = ceil_div(rows, o.part_rows);
    const size_t row_sums = 2 * static_cast<size_t>(n) * sizeof(A);
    const Scratch scratch(sums ? static_cast<size_t>(parts) * row_sums : 1, stream);
    if (sums) o.parts = scratch.template as<A>();
    o.shared = sums && row_sums <= kMostShared;
    const bool vectors = takes_vectors<T>(n, {&gy, &gsum, &x, &weight, &gx});
    const int64_t per_row = vectors ? n / kWidth : n;
    const auto threads =
        static_cast<unsigned>(std::min<int64_t>(kThreads, ceil_div(per_row, kWarp) * kWarp));
    launch(vectors ? layer_norm_gradients<T, kWidth> : layer_norm_gradients<T, 1>,
           blocks_for(parts, 1, stream), threads, o.shared ? row_sums : 0, stream, o, parts);
    if (!sums) return;
    launch(sum_parts<A>, blocks_for(2 * n, kWarp, stream), kWarp * kWarp, 0, stream,
           scratch.template as<A>(), parts, n, ChannelResult(gweight), ChannelResult(gbias));
  });
}

}  // namespace tarn::cuda
