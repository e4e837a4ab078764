// reducer.h - drives a reduction over any layout: rows or columns, in parallel, in a fixed order.
//
// Reads every element once. Accuracy: at most 256 additions in the lane type follow each other,
// chunks are merged in double. The places where work is cut are fixed, see reduce_plan.h.
#pragma once

#include <cmath>
#include <memory>

#include "tarn/core/cpu/reduce_ops.h"
#include "tarn/core/cpu/reduce_plan.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {

inline constexpr int64_t kTile = 1024;       // columns that one item folds
inline constexpr int64_t kBlock = 65536;     // elements of about which an item of rows is made
inline constexpr int64_t kFlush = 64;        // rows between merges into the wide accumulators
inline constexpr int64_t kRowChunk = 16384;  // elements of one output that one item folds

/// Applies `finish` to n folded values; only those of type double have one.
template <class W>
void apply_finish(Finish finish, W* values, int64_t n) {
  if constexpr (std::is_same_v<W, double>) {
    const double a = finish.argument;
    for (int64_t i = 0; i < n && finish.kind == Finish::kDivide; ++i) values[i] /= a;
    for (int64_t i = 0; i < n && finish.kind == Finish::kSqrt; ++i)
      values[i] = std::sqrt(values[i]);
    for (int64_t i = 0; i < n && finish.kind == Finish::kRoot; ++i)
      values[i] = std::pow(values[i], a);
  }
}

template <class Op, class T>
class Reducer {
 public:
  using Lane = typename Op::Lane;
  using Wide = typename Op::Wide;

  Reducer(Op op, const Tensor& x, const Tensor& out, Finish finish)
      : op_(op),
        plan_(make_reduce_plan(x, out)),
        x_(static_cast<const T*>(x.data())),
        out_(out.data()),
        out_dtype_(out.dtype()),
        finish_(finish) {}

  void run() {
    if (plan_.outputs == 0) return;
    if (plan_.columns) {
      run_columns();
    } else {
      run_rows();
    }
  }

 private:
  // Stores the values of outputs [first, first + n), which lie along the fastest kept dimension.
  void store(int64_t first, int64_t n, Wide* values) {
    apply_finish(finish_, values, n);
    const int64_t at = offset_at(first, plan_.kept, plan_.kept_size, plan_.out_stride);
    const int64_t step = plan_.kept ? plan_.out_stride[0] : 0;
    visit_dtype(out_dtype_, [&](auto tag) {
      using O = typename decltype(tag)::type;
      O* out = static_cast<O*>(out_) + at;
      for (int64_t i = 0; i < n; ++i) {
        if constexpr (is_half_type<O>) {
          out[i * step] = O(static_cast<float>(values[i]));
        } else {
          out[i * step] = static_cast<O>(values[i]);
        }
      }
    });
  }

  const T* base_of(int64_t output) const {
    return x_ + offset_at(output, plan_.kept, plan_.kept_size, plan_.kept_stride);
  }

  Wide fold_range(int64_t output, int64_t begin, int64_t end) const {
    Wide total = static_cast<Wide>(op_.init());
    for_chunks(base_of(output), plan_, begin, end,
               [&](const T* x, int64_t n) { total = op_.join(total, fold_chunk(op_, x, n)); });
    return total;
  }

  void run_rows() {
    const int64_t chunks = std::max<int64_t>(1, (plan_.count + kRowChunk - 1) / kRowChunk);
    const int64_t work = std::min(plan_.count, kRowChunk);
    if (chunks == 1) {
      parallel_for(plan_.outputs, grain_for(work), [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) {
          Wide value = fold_range(o, 0, plan_.count);
          store(o, 1, &value);
        }
      });
      return;
    }
    const auto partial = std::make_unique<Wide[]>(static_cast<size_t>(plan_.outputs * chunks));
    parallel_for(plan_.outputs * chunks, grain_for(work), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t from = i % chunks * kRowChunk;
        partial[i] = fold_range(i / chunks, from, std::min(plan_.count, from + kRowChunk));
      }
    });
    for (int64_t o = 0; o < plan_.outputs; ++o) {
      Wide* values = &partial[o * chunks];
      for (int64_t c = 1; c < chunks; ++c) values[0] = op_.join(values[0], values[c]);
      store(o, 1, values);
    }
  }

  // Folds rows [begin, end) of n columns into wide[n].
  void fold_columns(const T* base, int64_t n, int64_t begin, int64_t end, Wide* wide) const {
    for (int64_t c = 0; c < n; ++c) wide[c] = static_cast<Wide>(op_.init());
    if (begin >= end) return;  // nothing to sum: a reduced dimension has size 0
    Lane acc[kTile];
    RowWalker<T> rows(base, plan_, begin);
    for (int64_t r = begin; r < end;) {
      for (int64_t c = 0; c < n; ++c) acc[c] = op_.init();
      const int64_t stop = std::min(end, r + kFlush);
      for (; r + 4 <= stop; r += 4) {
        const T* __restrict p = rows.next(), * __restrict q = rows.next();
        const T* __restrict s = rows.next(), * __restrict t = rows.next();
        for (int64_t c = 0; c < n; ++c) {
          Lane a = op_.step(acc[c], to<Lane>(p[c]));
          a = op_.step(a, to<Lane>(q[c]));
          a = op_.step(a, to<Lane>(s[c]));
          acc[c] = op_.step(a, to<Lane>(t[c]));
        }
      }
      for (; r < stop; ++r) {
        const T* __restrict p = rows.next();
        for (int64_t c = 0; c < n; ++c) acc[c] = op_.step(acc[c], to<Lane>(p[c]));
      }
      for (int64_t c = 0; c < n; ++c) wide[c] = op_.join(wide[c], static_cast<Wide>(acc[c]));
    }
  }

  void run_columns() {
    const int64_t width = plan_.width();
    const int64_t tiles = (width + kTile - 1) / kTile;
    const int64_t outer = plan_.outputs / width;
    const int64_t rows = std::clamp<int64_t>(kBlock / std::min(width, kTile), kFlush, 2048);
    const int64_t blocks = std::max<int64_t>(1, (plan_.count + rows - 1) / rows);
    std::unique_ptr<Wide[]> partial;
    if (blocks > 1) partial = std::make_unique<Wide[]>(static_cast<size_t>(plan_.outputs * blocks));
    const int64_t work = std::min(plan_.count, rows) * std::min(width, kTile);
    parallel_for(outer * tiles * blocks, grain_for(work), [&](int64_t begin, int64_t end) {
      Wide local[kTile];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t tile = i % tiles * kTile, block = i / tiles % blocks;
        const int64_t first = i / (tiles * blocks) * width + tile;
        const int64_t n = std::min(kTile, width - tile), row = block * rows;
        Wide* wide = blocks > 1 ? &partial[block * plan_.outputs + first] : local;
        fold_columns(base_of(first), n, row, std::min(plan_.count, row + rows), wide);
        if (blocks == 1) store(first, n, wide);
      }
    });
    if (blocks == 1) return;
    parallel_for(outer, grain_for(width * blocks), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        Wide* total = &partial[o * width];
        for (int64_t b = 1; b < blocks; ++b) {
          const Wide* next = total + b * plan_.outputs;
          for (int64_t c = 0; c < width; ++c) total[c] = op_.join(total[c], next[c]);
        }
        store(o * width, width, total);
      }
    });
  }

  Op op_;
  ReducePlan plan_;
  const T* x_;
  void* out_;
  DType out_dtype_;
  Finish finish_;
};

template <class Op, class T>
void run_reduction(Op op, const Tensor& x, const Tensor& out, Finish finish = {}) {
  Reducer<Op, T>(op, x, out, finish).run();
}

}  // namespace tarn::cpu
