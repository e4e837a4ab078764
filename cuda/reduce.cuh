// reduce.cuh - the kernels of every reduction, and the plan that picks one.
//
// Two kernels read each element of x once, size(T) bytes, and write little:
//   rows      the reduced elements of an output are adjacent: a warp or a block per output, 16-byte
//             loads;
//   columns   anything else: blocks of columns (columns.cuh), with threads along the outputs where
//             those are adjacent in x, else along the reduced elements; offsets by LongWalk.
// With few outputs each is cut into parts, whose values (8 bytes or so each) a second launch of the
// columns kernel joins. Parts, threads and trees depend on the shapes alone: equal inputs give
// equal bits, whatever the device. Sums run as in the CPU's kernels: lanes in f32 for f32 and the
// halves, at most 64 steps long, merged in f64.
#pragma once

#include <algorithm>

#include "tarn/core/reduce_plan.h"
#include "tarn/cuda/columns.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/long_walk.cuh"
#include "tarn/cuda/reduce_fold.cuh"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/vec.cuh"
#include "tarn/cuda/warp.cuh"

namespace tarn::cuda {

template <class Fold, class Store>
struct ReduceJob {
  typename Fold::Op op;
  Store store;
  LongWalk<2> kept;  ///< of an output: in x and in out
  LongWalk<1> reduced;
  int64_t outputs, count;
  int64_t part;                  ///< elements of an output that one unit of work folds
  int64_t parts;                 ///< units of an output
  typename Fold::Wide* partial;  ///< [parts, outputs]; null if parts is 1

  __device__ void emit(int64_t output, int64_t p, int64_t out_offset,
                       const typename Fold::Wide& value) const {
    if (partial) {
      partial[p * outputs + output] = value;
    } else {
      store(out_offset, value);
    }
  }
};

/// One warp (group 32) or block (group 256) per output and part. `aligned`: every row is, for the
/// loads of kLanes elements.
template <class Fold, class Store>
__global__ void __launch_bounds__(kColumnThreads, 3)
    reduce_rows(const typename Fold::Input* x, ReduceJob<Fold, Store> job, int group,
                bool aligned) {
  using T = typename Fold::Input;
  using Wide = typename Fold::Wide;
  constexpr int L = Fold::kLanes;
  __shared__ Wide shared[kWarp];
  const auto join = [op = job.op](const Wide& a, const Wide& b) { return op.join(a, b); };
  const int groups = kColumnThreads / group;
  const int thread = static_cast<int>(threadIdx.x) % group;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * groups + threadIdx.x / group;
  for (int64_t unit = first; unit < job.outputs * job.parts; unit += int64_t{gridDim.x} * groups) {
    const int64_t output = unit / job.parts, p = unit - output * job.parts;
    int64_t at[2];
    job.kept.offsets(output, at);
    const int64_t begin = p * job.part;
    const int64_t n = min(job.count - begin, job.part);
    const T* row = x + at[0] + begin;
    Fold fold(job.op);
    const int64_t vectors = n / L;
    int64_t v = thread;
    if (aligned) {
      constexpr int kBatch = 4;  // loads under way before the first is used
#pragma unroll 1
      for (; v + (kBatch - 1) * group < vectors; v += kBatch * group) {
        Vec<T, L> batch[kBatch];
#pragma unroll
        for (int k = 0; k < kBatch; ++k) batch[k] = load_vec<L>(row + (v + k * group) * L);
#pragma unroll
        for (int k = 0; k < kBatch; ++k) fold.add(batch[k], begin + (v + k * group) * L, 1);
      }
    }
#pragma unroll 1
    for (; v < vectors; v += group) {
      Vec<T, L> values;
      if (aligned) {
        values = load_vec<L>(row + v * L);
      } else {
#pragma unroll
        for (int i = 0; i < L; ++i) values.v[i] = row[v * L + i];
      }
      fold.add(values, begin + v * L, 1);
    }
    const int64_t rest = vectors * L + thread;
    if (rest < n) fold.add_one(row[rest], begin + rest);
    Wide value = fold.result();
    if (group == kWarp) {
      value = warp_reduce(value, join);
    } else {
      value = block_reduce(value, Fold::identity(job.op), shared, join);
    }
    if (thread == 0) job.emit(output, p, at[1], value);
  }
}

/// A block folds `wide` outputs; see columns.cuh. kPartials: x holds [count, outputs] values of an
/// earlier launch.
template <class Fold, class Store, bool kPartials>
__global__ void __launch_bounds__(kColumnThreads, 3) reduce_columns(
    const std::conditional_t<kPartials, typename Fold::Wide, typename Fold::Input>* x,
    ReduceJob<Fold, Store> job, int wide, bool along) {
  using T = typename Fold::Input;
  using Wide = typename Fold::Wide;
  constexpr int L = Fold::kLanes;
  __shared__ Wide shared[kColumnThreads];
  const auto join = [op = job.op](const Wide& a, const Wide& b) { return op.join(a, b); };
  const ColumnPlace place(wide, along);
  const int64_t tiles = (job.outputs + wide - 1) / wide;
  for (int64_t unit = blockIdx.x; unit < tiles * job.parts; unit += gridDim.x) {
    const int64_t p = unit / tiles;
    const int64_t output = (unit - p * tiles) * wide + place.column;
    Fold fold(job.op);
    int64_t at[2] = {0, 0};
    if (output < job.outputs) {
      job.kept.offsets(output, at);
      const int64_t end = min(job.count, (p + 1) * job.part);
      int64_t i = p * job.part + place.place;
      if constexpr (kPartials) {
        for (; i < end; i += place.deep) fold.merge(x[i * job.outputs + output]);
      } else {
        int64_t offset[1];
        for (; i + (L - 1) * place.deep < end; i += L * place.deep) {
          Vec<T, L> values;
#pragma unroll
          for (int j = 0; j < L; ++j) {
            job.reduced.offsets(i + j * place.deep, offset);
            values.v[j] = x[at[0] + offset[0]];
          }
          fold.add(values, i, place.deep);
        }
        for (; i < end; i += place.deep) {
          job.reduced.offsets(i, offset);
          fold.add_one(x[at[0] + offset[0]], i);
        }
      }
    }
    const Wide value = reduce_column(fold.result(), place, shared, join);
    if (place.place == 0 && output < job.outputs) job.emit(output, p, at[1], value);
  }
}

/// How the outputs of a reduction are laid on blocks, from the shapes alone.
struct ReduceShape {
  bool rows = false;   ///< reduce_rows, else reduce_columns
  bool along = false;  ///< columns: threads lie along the reduced elements
  int group = kWarp;   ///< rows: threads per output and part
  int wide = 1;        ///< columns: outputs per block
  int64_t part = 0, parts = 1;

  /// `lanes`: elements a thread loads at once. `rows_allowed`: there is a rows kernel.
  ReduceShape(const ReducePlan& plan, int lanes, bool rows_allowed) {
    constexpr int64_t kFewBlocks = 1024;  // about what fills the largest devices once
    constexpr int64_t kRowsFrom = 256;    // elements; shorter rows share a block of columns
    const bool adjacent = plan.reduced > 0 && plan.reduced_stride[0] == 1;
    rows = rows_allowed && plan.reduced == 1 && adjacent && plan.count >= kRowsFrom;
    int64_t blocks = plan.outputs, least = 16384;
    if (rows) {
      if (plan.count >= 2048 || plan.outputs < kFewBlocks) group = kColumnThreads;
    } else {
      const auto stride = [](int n, const int64_t* strides) {
        return n == 0 || strides[0] == 0 ? std::numeric_limits<int64_t>::max() : strides[0];
      };
      along = stride(plan.reduced, plan.reduced_stride) < stride(plan.kept, plan.kept_stride);
      wide = columns_per_block(plan.outputs, plan.count, along);
      blocks = ceil_div(plan.outputs, wide);
      least = int64_t{kColumnThreads} / wide * lanes * 4;
    }
    part = std::max<int64_t>(plan.count, 1);
    if (blocks < kFewBlocks && plan.count >= 2 * least) {
      parts = std::min(ceil_div(kFewBlocks, blocks), ceil_div(plan.count, least));
      part = ceil_div(ceil_div(plan.count, parts), 64) * 64;  // keeps the parts aligned
      parts = ceil_div(plan.count, part);
    }
  }
};

/// Reduces x as planned. kRows: builds the rows kernel too (not worth it for rare reductions).
template <class Fold, bool kRows = true, class Store>
void run_reduce(const typename Fold::Op& op, const Store& store, const ReducePlan& plan,
                const void* x_in, Stream stream) {
  using T = typename Fold::Input;
  using Wide = typename Fold::Wide;
  if (plan.outputs == 0) return;
  const T* x = static_cast<const T*>(x_in);
  const ReduceShape shape(plan, Fold::kLanes, kRows);
  const LongWalk<2> kept(plan.kept, plan.kept_size, {plan.kept_stride, plan.out_stride});
  // Over nothing there are no positions to walk.
  const LongWalk<1> reduced(plan.count > 0 ? plan.reduced : 0, plan.reduced_size,
                            {plan.reduced_stride});
  ReduceJob<Fold, Store> job{op,         store,      kept,        reduced, plan.outputs,
                             plan.count, shape.part, shape.parts, nullptr};
  const size_t partial_bytes =
      shape.parts > 1 ? static_cast<size_t>(shape.parts * plan.outputs) * sizeof(Wide) : 0;
  const Scratch partial(partial_bytes, stream);
  if (shape.parts > 1) job.partial = partial.as<Wide>();
  bool launched = false;
  if constexpr (kRows) {
    if (shape.rows) {
      bool aligned = is_aligned(x, sizeof(Vec<T, Fold::kLanes>));
      for (int d = 0; d < plan.kept; ++d) aligned &= plan.kept_stride[d] % Fold::kLanes == 0;
      const int64_t units = plan.outputs * shape.parts;
      launch(reduce_rows<Fold, Store>, blocks_for(units, kColumnThreads / shape.group, stream),
             kColumnThreads, 0, stream, x, job, shape.group, aligned);
      launched = true;
    }
  }
  if (!launched) {
    const int64_t units = ceil_div(plan.outputs, shape.wide) * shape.parts;
    launch(reduce_columns<Fold, Store, false>, blocks_for(units, 1, stream), kColumnThreads, 0,
           stream, x, job, shape.wide, shape.along);
  }
  if (shape.parts == 1) return;
  job.partial = nullptr;
  job.count = job.part = shape.parts;
  job.parts = 1;
  const int wide = columns_per_block(plan.outputs, shape.parts, false);
  launch(reduce_columns<Fold, Store, true>, blocks_for(ceil_div(plan.outputs, wide), 1, stream),
         kColumnThreads, 0, stream, partial.as<Wide>(), job, wide, false);
}

/// Reduces x to out with an operation of core/reduce_ops.h.
template <class T, class Op>
void reduce_to(const Op& op, Finish finish, const Tensor& x, const Tensor& out, Stream stream) {
  constexpr bool kRoot = std::is_same_v<Op, PowerSumOp<T>>;
  run_reduce<LaneFold<Op, T>>(op, ValueStore<kRoot>{out.data(), out.dtype(), finish},
                              make_reduce_plan(x, out), x.data(), stream);
}

}  // namespace tarn::cuda
