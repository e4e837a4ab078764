// softmax.h - the row statistics that softmax and cross entropy share.
#pragma once

#include <cmath>

#include "tarn/core/cpu/reduce_ops.h"
#include "tarn/core/kernels/softmax.h"
#include "tarn/core/math.h"

namespace tarn::cpu {

/// Maximum of a row and log(sum(exp(x - max))), apart: their sum would lose the logarithm where
/// the logits are large.
template <class A>
struct LogSumExp {
  A max, log_sum;
};

inline constexpr int64_t kExpChunk = 1024;

/// Sum of exp(x - max) over a row; with `keep`, the terms are left there.
template <class T, class A = compute_t<T>>
double sum_exp(const T* x, int64_t n, A max, A* keep) {
  constexpr int L = kLanes<A>;
  A buffer[kExpChunk];
  double sum = 0;
  const int64_t whole = n / L * L;
  for (int64_t from = 0; from < whole; from += kExpChunk) {
    const int64_t m = std::min(kExpChunk, whole - from);
    const T* __restrict in = x + from;
    A* __restrict e = keep ? keep + from : buffer;
    for (int64_t i = 0; i < m; ++i) e[i] = math::exp(to<A>(in[i]) - max);
    sum += fold_chunk(SumOp<A>(), e, m);
  }
  if (whole == n) return sum;
  // The rest fills one vector with terms of exp(-inf) = 0: one step instead of up to L - 1.
  A* __restrict rest = buffer;
  for (int i = 0; i < L; ++i) rest[i] = -std::numeric_limits<A>::infinity();
  for (int64_t i = whole; i < n; ++i) rest[i - whole] = to<A>(x[i]) - max;
  for (int i = 0; i < L; ++i) rest[i] = math::exp(rest[i]);
  for (int64_t i = whole; keep && i < n; ++i) keep[i] = rest[i - whole];
  return sum + fold_chunk(SumOp<A>(), rest, L);
}

template <class T, class A = compute_t<T>>
LogSumExp<A> log_sum_exp(const T* x, int64_t n) {
  const A max = fold_chunk(MaxOp<T>(), x, n);
  return {max, static_cast<A>(std::log(sum_exp<T>(x, n, max, static_cast<A*>(nullptr))))};
}

void cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight,
                   int64_t ignore_index, double smoothing, const Tensor& loss, const Tensor& stats,
                   const Tensor& totals, Stream stream);
void cross_entropy_backward(const Tensor& gloss, const Tensor& logits, const Tensor& target,
                            const Tensor& weight, int64_t ignore_index, double smoothing,
                            const Tensor& stats, const Tensor& glogits, Stream stream);

}  // namespace tarn::cpu
