// cross_entropy.cpp - softmax and cross entropy in one pass over the logits, on the CPU.
//
// Forward reads a row twice in cache and writes four numbers; the probabilities are never stored.
#include <vector>

#include "tarn/core/cpu/batch_norm.h"
#include "tarn/core/cpu/softmax.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

/// Class weights (1 where there are none) and their sum.
template <class A>
struct ClassWeights {
  std::vector<A> values;
  double sum = 0;

  ClassWeights(const Tensor& weight, int64_t classes) {
    const std::vector<double> w = channel_values(weight, classes, 1);
    values = row_values<A>(w, 1);
    for (double v : w) sum += v;
  }
};

// sum over classes of weight * log probability.
template <class T, class A = compute_t<T>>
double smoothed_sum(const T* x, int64_t n, LogSumExp<A> s, const A* weight) {
  A buffer[kExpChunk];
  double sum = 0;
  for (int64_t from = 0; from < n; from += kExpChunk) {
    const int64_t m = std::min(kExpChunk, n - from);
    const T* __restrict in = x + from;
    const A* __restrict w = weight + from;
    for (int64_t i = 0; i < m; ++i) buffer[i] = w[i] * (to<A>(in[i]) - s.max - s.log_sum);
    sum += fold_chunk(SumOp<A>(), buffer, m);
  }
  return sum;
}

/// gx = g * (p * total - smooth * weight), less g * kept at the target.
template <class T, class A = compute_t<T>>
void gradient_row(const T* __restrict x, int64_t n, LogSumExp<A> s, A total, A smooth,
                  const A* __restrict weight, T* __restrict gx) {
  if (smooth == A(0)) {
    for (int64_t i = 0; i < n; ++i) {
      gx[i] = T(math::exp(to<A>(x[i]) - s.max - s.log_sum) * total);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      gx[i] = T(math::exp(to<A>(x[i]) - s.max - s.log_sum) * total - smooth * weight[i]);
    }
  }
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight,
                   int64_t ignore_index, double smoothing, const Tensor& loss, const Tensor& stats,
                   Stream) {
  const int64_t rows = logits.sizes()[0], n = logits.sizes()[1];
  const int64_t* labels = target.data<int64_t>();
  visit_floating(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    const ClassWeights<A> weights(weight, n);
    parallel_for(rows, grain_for(4 * n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* x = static_cast<const T*>(logits.data()) + r * n;
        const LogSumExp<A> s = log_sum_exp<T>(x, n);
        const bool kept = labels[r] != ignore_index;
        A* stat = static_cast<A*>(stats.data()) + 3 * r;
        stat[0] = s.max;
        stat[1] = s.log_sum;
        stat[2] = kept ? weights.values[labels[r]] : A(0);
        double value = 0;
        if (kept) {
          const A log_p = to<A>(x[labels[r]]) - s.max - s.log_sum;
          value = -(1 - smoothing) * weights.values[labels[r]] * log_p;
          if (smoothing > 0) {
            value -= smoothing / static_cast<double>(n) *
                     smoothed_sum<T>(x, n, s, weights.values.data());
          }
        }
        static_cast<A*>(loss.data())[r] = static_cast<A>(value);
      }
    });
  });
}

void cross_entropy_backward(const Tensor& gloss, const Tensor& logits, const Tensor& target,
                            const Tensor& weight, int64_t ignore_index, double smoothing,
                            const Tensor& stats, const Tensor& glogits, Stream) {
  const int64_t rows = logits.sizes()[0], n = logits.sizes()[1];
  const int64_t* labels = target.data<int64_t>();
  visit_floating(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    const ClassWeights<A> weights(weight, n);
    const double share = smoothing / static_cast<double>(n);
    parallel_for(rows, grain_for(4 * n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* x = static_cast<const T*>(logits.data()) + r * n;
        T* gx = static_cast<T*>(glogits.data()) + r * n;
        if (labels[r] == ignore_index) {
          for (int64_t i = 0; i < n; ++i) gx[i] = T(A(0));
          continue;
        }
        const A* s = static_cast<const A*>(stats.data()) + 3 * r;
        const double g = static_cast<const A*>(gloss.data())[r];
        const double kept = (1 - smoothing) * weights.values[labels[r]];
        const LogSumExp<A> row{s[0], s[1]};
        const A total = static_cast<A>(g * (kept + share * weights.sum));
        const A smooth = static_cast<A>(g * share);
        gradient_row<T>(x, n, row, total, smooth, weights.values.data(), gx);
        // The target's entry again, in one rounding.
        const A p = math::exp(to<A>(x[labels[r]]) - row.max - row.log_sum);
        gx[labels[r]] = T(static_cast<A>(p * static_cast<double>(total) - g * kept) -
                          smooth * weights.values[labels[r]]);
      }
    });
  });
}

}  // namespace tarn::cpu
