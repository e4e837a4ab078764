// scan.cu - running sums and products along a dimension.
//
// x is seen as [outer, n, inner]. A long dimension over few columns is cut into parts: the first
// launch finds each part's total, the second turns the totals into what stands before each part,
// the third scans. Long rows of adjacent elements are scanned by a block, tile by tile: every
// thread a few in order, then the threads' totals by shuffles; else a thread walks its own column,
// and neighbours read whole lines. Accumulates in f64 as the CPU does (u64 for integers), in an
// order that depends on the shape alone. Per element: one read and one write, two reads where cut.
#include "tarn/core/cast.h"
#include "tarn/core/reduce_ops.h"
#include "tarn/cuda/columns.cuh"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/reduce.h"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {
namespace {

template <class T>
using ScanOut = std::conditional_t<is_float_type<T>, T, int64_t>;

struct ScanJob {
  int64_t columns, n, inner;
  int64_t part, parts;
  bool product;

  /// True if a block takes a row; short rows are left to a thread each.
  bool rows() const { return inner == 1 && n >= 128; }
};

template <class A>
__device__ __forceinline__ A scan_step(bool product, A a, A b) {
  return product ? a * b : a + b;
}

/// The running value up to and with this thread, over the threads of the block; `total` gets all of
/// it. `shared` holds a value per warp.
template <class A>
__device__ A scan_block(A value, bool product, A* shared, A* total) {
  const int lane = lane_id(), warps = static_cast<int>(blockDim.x) / kWarp;
  for (int step = 1; step < kWarp; step *= 2) {
    const A before = __shfl_up_sync(kFullMask, value, step);
    if (lane >= step) value = scan_step(product, before, value);
  }
  __syncthreads();  // the last totals were read
  if (lane == kWarp - 1) shared[warp_id()] = value;
  __syncthreads();
  A before = product ? A(1) : A(0), all = before;
  for (int w = 0; w < warps; ++w) {
    if (w == warp_id()) before = all;
    all = scan_step(product, all, shared[w]);
  }
  *total = all;
  return scan_step(product, before, value);
}

/// Rows of adjacent elements. out null: only the parts' totals are found, [parts, columns].
template <class T>
__global__ void __launch_bounds__(kColumnThreads, 3)
    scan_rows(const T* x, ScanOut<T>* out, ScanJob job, const SumWide<T>* starts,
              SumWide<T>* totals) {
  using A = SumWide<T>;
  constexpr int kEach = 4;
  constexpr int kTile = kColumnThreads * kEach;
  __shared__ A shared[kWarp];
  const A one = job.product ? A(1) : A(0);
  for (int64_t unit = blockIdx.x; unit < job.columns * job.parts; unit += gridDim.x) {
    const int64_t row = unit / job.parts, p = unit - row * job.parts;
    const int64_t end = min(job.n, (p + 1) * job.part);
    A carry = starts ? starts[p * job.columns + row] : one;
    for (int64_t begin = p * job.part; begin < end; begin += kTile) {
      const int64_t mine = begin + threadIdx.x * kEach;
      A values[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        values[i] = mine + i < end ? cast_value<A>(x[row * job.n + mine + i]) : one;
      }
#pragma unroll
      for (int i = 1; i < kEach; ++i) {
        values[i] = scan_step(job.product, values[i - 1], values[i]);
      }
      A tile_total;
      const A upto = scan_block(values[kEach - 1], job.product, shared, &tile_total);
      // What stands before this thread: its left neighbour's value.
      A before = __shfl_up_sync(kFullMask, upto, 1);
      if (lane_id() == 0) {
        before = one;
        for (int w = 0; w < warp_id(); ++w) before = scan_step(job.product, before, shared[w]);
      }
      before = scan_step(job.product, carry, before);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (out && mine + i < end) {
          out[row * job.n + mine + i] =
              cast_value<ScanOut<T>>(scan_step(job.product, before, values[i]));
        }
      }
      carry = scan_step(job.product, carry, tile_total);
    }
    if (totals && threadIdx.x == 0) totals[p * job.columns + row] = carry;
  }
}

/// A thread per column and part.
template <class T>
__global__ void scan_columns(const T* x, ScanOut<T>* out, ScanJob job, const SumWide<T>* starts,
                             SumWide<T>* totals) {
  using A = SumWide<T>;
  for (int64_t unit = grid_index(); unit < job.columns * job.parts; unit += grid_step()) {
    const int64_t p = unit / job.columns, column = unit - p * job.columns;
    const int64_t outer = column / job.inner, within = column - outer * job.inner;
    const int64_t base = outer * job.n * job.inner + within;
    const int64_t end = min(job.n, (p + 1) * job.part);
    A acc = starts ? starts[unit] : job.product ? A(1) : A(0);
#pragma unroll 4
    for (int64_t i = p * job.part; i < end; ++i) {
      const int64_t at = base + i * job.inner;
      acc = scan_step(job.product, acc, cast_value<A>(x[at]));
      if (out) out[at] = cast_value<ScanOut<T>>(acc);
    }
    if (totals) totals[unit] = acc;
  }
}

/// totals[p] becomes what stands before part p.
template <class A>
__global__ void scan_totals(A* totals, int64_t columns, int64_t parts, bool product) {
  for (int64_t column = grid_index(); column < columns; column += grid_step()) {
    A acc = product ? A(1) : A(0);
#pragma unroll 8
    for (int64_t p = 0; p < parts; ++p) {
      const A next = totals[p * columns + column];
      totals[p * columns + column] = acc;
      acc = scan_step(product, acc, next);
    }
  }
}

template <class T>
void scan(const T* x, ScanOut<T>* out, ScanJob job, Stream stream) {
  using A = SumWide<T>;
  const bool rows = job.rows();
  const auto pass = [&](ScanOut<T>* to, const A* starts, A* totals) {
    const int64_t units = job.columns * job.parts;
    if (rows) {
      launch(scan_rows<T>, blocks_for(units, 1, stream), kColumnThreads, 0, stream, x, to, job,
             starts, totals);
    } else {
      launch(scan_columns<T>, blocks_for(units, kColumnThreads, stream), kColumnThreads, 0, stream,
             x, to, job, starts, totals);
    }
  };
  if (job.parts == 1) return pass(out, nullptr, nullptr);
  const Scratch scratch(static_cast<size_t>(job.columns * job.parts) * sizeof(A), stream);
  A* totals = scratch.as<A>();
  pass(nullptr, nullptr, totals);
  launch(scan_totals<A>, blocks_for(job.columns, kColumnThreads, stream), kColumnThreads, 0, stream,
         totals, job.columns, job.parts, job.product);
  pass(out, totals, nullptr);
}

/// Parts of the dimension, from the shape alone: enough units to fill a large device.
void cut(ScanJob& job) {
  const bool rows = job.rows();
  const int64_t least = rows ? 8192 : 128, wanted = rows ? 1024 : 65536;
  constexpr int64_t kMostParts = 256;
  job.parts = std::min({kMostParts, ceil_div(job.n, least), ceil_div(wanted, job.columns)});
  if (job.columns * 2 > wanted) job.parts = 1;  // a second read would not pay
  job.part = ceil_div(job.n, job.parts);
  job.parts = ceil_div(job.n, job.part);
}

}  // namespace

void cumulative(bool product, const Tensor& x, int64_t dim, const Tensor& out, Stream stream) {
  const Extents e(x, dim);
  ScanJob job{e.columns(), e.n, e.inner, e.n, 1, product};
  cut(job);
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
    scan(static_cast<const Element*>(x.data()), static_cast<ScanOut<Element>*>(out.data()), job,
         stream);
  });
}

}  // namespace tarn::cuda
