// layer_norm_backward.cu - the gradients of layer norm and RMS norm.
//
// A block takes some neighbouring rows one after the other, two reads and one write per element;
// each thread adds its columns' share of the gradients of weight and bias in shared memory, and a
// second kernel adds the blocks' shares (2 * D numbers per kPartRows rows, or per 1 / kMostParts of
// all rows) in f64. Every order is fixed by the sizes.
#include "tarn/cuda/batch_norm.h"
#include "tarn/cuda/channel_values.cuh"
#include "tarn/cuda/layer_norm_rows.cuh"
#include "tarn/cuda/scratch.h"

namespace tarn::cuda {
namespace {

constexpr int64_t kPartRows = 8;  // rows that a block adds up, at least
constexpr int64_t kMostParts = 2048;

template <class T>
struct BackwardArgs {
  using A = compute_t<T>;
  const T *gy, *gsum, *x;         // gsum null: none
  const A *weight, *mean, *rstd;  // mean null: of RMS norm
  T* gx;                          // null: not wanted
  A* parts;                       // [parts][2][n], of gweight and gbias; null: not wanted
  int64_t rows, part_rows;
  int n;
};

/// A thread's own columns of two sums, in shared memory or in the place [2][n] where they end.
template <class A, int V, bool kShared>
struct ColumnSums {
  A* sums;
  int n;

  /// V columns for each step of each thread, so that every thread has whole ones.
  static __host__ __device__ int padded(int n, int threads) {
    const int step = threads * V;
    return (n + step - 1) / step * step;
  }
  /// Column k of the vector at `at`. In shared memory neighbouring threads are in different banks.
  __device__ __forceinline__ A& first(int at, int k) const {
    if constexpr (!kShared) return sums[at + k];
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    return sums[at - thread * V + k * threads + thread];
  }
  __device__ __forceinline__ A& second(int at, int k) const {
    const ColumnSums next{sums + (kShared ? padded(n, static_cast<int>(blockDim.x)) : n), n};
    return next.first(at, k);
  }
};

/// gx of a part's rows, and the part's sums for gweight and gbias.
/// Four blocks a multiprocessor, so up to 64 registers: without that bound ptxas keeps to 32 and
/// spills.
template <class T, int V, bool kShared>
__global__ void __launch_bounds__(kRowThreads, 4)
    layer_norm_gradients(BackwardArgs<T> o, int64_t parts) {
  using A = compute_t<T>;
  TARN_DYNAMIC_SHARED(A, shared);
  __shared__ TwoSums scratch[kWarp];
  const int n = o.n, first = static_cast<int>(threadIdx.x) * V;
  const int step = static_cast<int>(blockDim.x) * V;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    A* const to = o.parts ? o.parts + part * 2 * n : nullptr;
    const ColumnSums<A, V, kShared> sums{kShared ? shared : to, n};
    for (int at = first; to && at < n; at += step) {
#pragma unroll
      for (int k = 0; k < V; ++k) sums.first(at, k) = sums.second(at, k) = A(0);
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
            sums.first(at, k) += g[k] * xhat;
            sums.second(at, k) += g[k];
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
    for (int at = first; kShared && to && at < n; at += step) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        to[at + k] = sums.first(at, k);
        to[n + at + k] = sums.second(at, k);
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
    if (c < 2 * n) {
#pragma unroll 8
      for (int64_t i = warp; i < count; i += kWarp) sum += parts[i * 2 * n + c];
    }
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

}  // namespace

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
    // Whole steps of a block, in 32 KiB: leaves room for several blocks.
    constexpr int kMostShared = (32 << 10) / (2 * sizeof(A));
    static_assert(kMostShared % (kRowThreads * kWidth) == 0);
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
                      n};
    const int64_t parts = ceil_div(rows, o.part_rows);
    const Scratch scratch(sums ? static_cast<size_t>(parts * 2 * n) * sizeof(A) : 1, stream);
    if (sums) o.parts = scratch.template as<A>();
    const auto run = [&](auto width, auto in_shared) {
      const int64_t per_row = ceil_div(n, width);
      const int threads =
          static_cast<int>(std::min<int64_t>(kRowThreads, ceil_div(per_row, kWarp) * kWarp));
      const int columns = ColumnSums<A, width, in_shared>::padded(n, threads);
      launch(layer_norm_gradients<T, width, in_shared>, blocks_for(parts, 1, stream),
             static_cast<unsigned>(threads),
             in_shared ? 2 * static_cast<size_t>(columns) * sizeof(A) : 0, stream, o, parts);
    };
    const auto run_wide = [&](auto width) {
      const bool in_shared = sums && n <= kMostShared;
      in_shared ? run(width, std::true_type()) : run(width, std::false_type());
    };
    if (takes_vectors<T>(n, {&gy, &gsum, &x, &weight, &gx})) {
      run_wide(std::integral_constant<int, kWidth>());
    } else {
      run_wide(std::integral_constant<int, 1>());
    }
    if (!sums) return;
    launch(sum_parts<A>, blocks_for(2 * n, kWarp, stream), kWarp * kWarp, 0, stream,
           scratch.template as<A>(), parts, n, ChannelResult(gweight), ChannelResult(gbias));
  });
}

}  // namespace tarn::cuda
