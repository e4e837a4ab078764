// moments.cpp - mean and squared deviations over rows or columns; the kernel var_mean.
#include "tarn/core/cpu/moments.h"

#include <cmath>
#include <memory>

#include "tarn/core/cpu/reduce.h"
#include "tarn/core/cpu/reduce_ops.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kTile = 1024;
constexpr int64_t kShiftRows = 32;
constexpr int64_t kRowChunk = 4 * kChunk;

template <class T>
void moments_of_rows(const T* x, const ReducePlan& p, double* mean, double* m2) {
  const int64_t chunks = std::max<int64_t>(1, (p.count + kRowChunk - 1) / kRowChunk);
  const auto parts = std::make_unique<Moments[]>(static_cast<size_t>(p.outputs * chunks));
  const int64_t work = std::min(p.count, kRowChunk);
  parallel_for(p.outputs * chunks, grain_for(work), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = i % chunks * kRowChunk;
      const T* base = x + offset_at(i / chunks, p.kept, p.kept_size, p.kept_stride);
      for_chunks(base, p, from, std::min(p.count, from + kRowChunk),
                 [&](const T* at, int64_t n) { parts[i].merge(chunk_moments(at, n)); });
    }
  });
  for (int64_t o = 0; o < p.outputs; ++o) {
    Moments total;
    for (int64_t c = 0; c < chunks; ++c) total.merge(parts[o * chunks + c]);
    mean[o] = total.mean;
    m2[o] = total.m2;
  }
}

template <class A>
struct ColumnSums {
  A shift[kTile], sum[kTile], squares[kTile];
};

// The mean of the first rows, exact enough to be what the block's values are measured from.
template <class T, class A>
void find_shift(RowWalker<T> rows, int64_t count, int64_t n, A* __restrict shift) {
  for (int64_t c = 0; c < n; ++c) shift[c] = 0;
  for (int64_t r = 0; r < count; ++r) {
    const T* __restrict x = rows.next();
    for (int64_t c = 0; c < n; ++c) shift[c] += to<A>(x[c]);
  }
  for (int64_t c = 0; c < n; ++c) shift[c] /= static_cast<A>(count);
}

template <class T, class A>
void block_sums(RowWalker<T> rows, int64_t count, int64_t n, ColumnSums<A>& out) {
  A* __restrict shift = out.shift, * __restrict sum = out.sum, * __restrict squares = out.squares;
  for (int64_t c = 0; c < n; ++c) sum[c] = squares[c] = 0;
  int64_t r = 0;
  for (; r + 4 <= count; r += 4) {
    const T* __restrict x0 = rows.next(), * __restrict x1 = rows.next();
    const T* __restrict x2 = rows.next(), * __restrict x3 = rows.next();
    for (int64_t c = 0; c < n; ++c) {
      const A d0 = to<A>(x0[c]) - shift[c], d1 = to<A>(x1[c]) - shift[c];
      const A d2 = to<A>(x2[c]) - shift[c], d3 = to<A>(x3[c]) - shift[c];
      sum[c] += (d0 + d1) + (d2 + d3);
      squares[c] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
    }
  }
  for (; r < count; ++r) {
    const T* __restrict x = rows.next();
    for (int64_t c = 0; c < n; ++c) {
      const A d = to<A>(x[c]) - shift[c];
      sum[c] += d;
      squares[c] += d * d;
    }
  }
}

template <class T>
void moments_of_columns(const T* x, const ReducePlan& p, double* mean, double* m2) {
  using A = compute_t<T>;
  const int64_t width = p.width(), tiles = (width + kTile - 1) / kTile;
  const int64_t block = std::clamp<int64_t>(65536 / std::min(width, kTile), kShiftRows, 512);
  const int64_t blocks = std::max<int64_t>(1, (p.count + block - 1) / block);
  const int64_t outer = p.outputs / width;
  const auto parts = std::make_unique<Moments[]>(static_cast<size_t>(p.outputs * blocks));
  const int64_t work = std::min(p.count, block) * std::min(width, kTile);
  parallel_for(outer * tiles * blocks, grain_for(work), [&](int64_t begin, int64_t end) {
    const auto sums = std::make_unique<ColumnSums<A>>();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t tile = i % tiles * kTile, b = i / tiles % blocks;
      const int64_t first = i / (tiles * blocks) * width + tile, n = std::min(kTile, width - tile);
      const int64_t count = std::min(block, p.count - b * block);
      if (count <= 0) continue;
      RowWalker<T> rows(x + offset_at(first, p.kept, p.kept_size, p.kept_stride), p, b * block);
      find_shift(rows, std::min(kShiftRows, count), n, sums->shift);
      block_sums(rows, count, n, *sums);
      Moments* to = &parts[b * p.outputs + first];
      const double rows_in_block = static_cast<double>(count);
      for (int64_t c = 0; c < n; ++c) {
        const double sum = sums->sum[c], off = sum / rows_in_block;
        to[c] = {rows_in_block, sums->shift[c] + off,
                 squared_deviations(sum, sums->squares[c], off)};
      }
    }
  });
  for (int64_t o = 0; o < p.outputs; ++o) {
    Moments total = parts[o];
    for (int64_t b = 1; b < blocks; ++b) total.merge(parts[b * p.outputs + o]);
    mean[o] = total.mean;
    m2[o] = std::isnan(total.m2) ? total.m2 : std::max(0.0, total.m2);
  }
}

}  // namespace

void moments(const Tensor& x, const ReducePlan& plan, double* mean, double* m2) {
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* data = static_cast<const T*>(x.data());
    if (plan.columns) {
      moments_of_columns(data, plan, mean, m2);
    } else {
      moments_of_rows(data, plan, mean, m2);
    }
  });
}

void var_mean(const Tensor& x, double correction, const Tensor& var, const Tensor& mean, Stream) {
  const Tensor& like = var.defined() ? var : mean;
  const ReducePlan plan = make_reduce_plan(x, like);
  const auto means = std::make_unique<double[]>(static_cast<size_t>(2 * plan.outputs));
  double* squares = means.get() + plan.outputs;
  if (plan.outputs > 0) moments(x, plan, means.get(), squares);
  // As in PyTorch: nothing to average gives NaN, too few degrees of freedom NaN or infinity.
  const double count = static_cast<double>(plan.count);
  const double freedom = std::max(0.0, count - correction);
  visit_floating(like.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t o = 0; o < plan.outputs; ++o) {
      const int64_t at = offset_at(o, plan.kept, plan.kept_size, plan.out_stride);
      const double v = count > 0 ? squares[o] / freedom : NAN;
      const double m = count > 0 ? means[o] : NAN;
      if (var.defined()) static_cast<T*>(var.data())[at] = T(static_cast<compute_t<T>>(v));
      if (mean.defined()) static_cast<T*>(mean.data())[at] = T(static_cast<compute_t<T>>(m));
    }
  });
}

}  // namespace tarn::cpu
