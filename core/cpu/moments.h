// moments.h - mean and squared deviations of a reduction's outputs: variance, batch norm.
//
// Never E[x^2] - E[x]^2. A block of rows is read once, as differences from the mean of its first
// rows, which are part of it: what cancels is then at most (block / first rows) times the result.
// Adjacent elements are read twice in cache. Blocks are merged in double (Chan et al. 1979).
#pragma once

#include "tarn/core/cpu/reduce_ops.h"
#include "tarn/core/cpu/reduce_plan.h"
#include "tarn/core/squared_deviations.h"

namespace tarn::cpu {

/// Count, mean and squared deviations of a set; the union of two sets by Chan's formula.
struct Moments {
  double n = 0, mean = 0, m2 = 0;

  void merge(const Moments& b) {
    if (b.n == 0) return;
    if (n == 0) {
      *this = b;  // delta^2 * 0 is NaN where the square overflows
      return;
    }
    const double total = n + b.n, delta = b.mean - mean;
    m2 += b.m2 + delta * delta * (n * b.n / total);
    mean += delta * (b.n / total);
    n = total;
  }
};

/// Of n adjacent elements; n at most kChunk.
template <class T>
Moments chunk_moments(const T* x, int64_t n) {
  using A = compute_t<T>;
  using V = Vec<A>;
  constexpr int L = kLanes<A>;
  const double count = static_cast<double>(n);
  const A shift = static_cast<A>(fold_chunk(SumOp<T>(), x, n) / count);
  V s0{}, s1{}, q0{}, q1{};
  int64_t i = 0;
  for (; i + 2 * L <= n; i += 2 * L) {
    const V d0 = load<A>(x + i) - shift, d1 = load<A>(x + i + L) - shift;
    s0 += d0;
    s1 += d1;
    q0 += d0 * d0;
    q1 += d1 * d1;
  }
  double sum = static_cast<double>(sum_lanes(s0 + s1));
  double squares = static_cast<double>(sum_lanes(q0 + q1));
  for (; i < n; ++i) {
    const A d = to<A>(x[i]) - shift;
    sum += d;
    squares += static_cast<double>(d) * d;
  }
  const double off = sum / count;
  return {count, static_cast<double>(shift) + off, squared_deviations(sum, squares, off)};
}

/// Writes mean[o] and m2[o] = sum (x - mean)^2 for each output in the plan's order.
void moments(const Tensor& x, const ReducePlan& plan, double* mean, double* m2);

}  // namespace tarn::cpu
