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

constexpr int64_t kSmall = 64;  // classes up to which rows are treated kGroup at a time
constexpr int64_t kGroup = 16;  // rows that fill a vector

// max and log-sum of up to kGroup short rows: the loops run over rows, so that no step is scalar.
template <class T, class A = compute_t<T>>
void log_sum_exp_of_rows(const T* x, int64_t rows, int64_t n, LogSumExp<A>* out) {
  A columns[kSmall][kGroup], max[kGroup], sum[kGroup] = {};
  for (int64_t r = 0; r < kGroup; ++r) {
    const T* row = x + std::min(r, rows - 1) * n;  // the missing ones repeat the last
    for (int64_t i = 0; i < n; ++i) columns[i][r] = to<A>(row[i]);
  }
  const MaxOp<T> op;
  for (A& m : max) m = op.init();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < kGroup; ++r) max[r] = op.step(max[r], columns[i][r]);
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < kGroup; ++r) sum[r] += math::exp(columns[i][r] - max[r]);
  }
  for (int64_t r = 0; r < kGroup; ++r) sum[r] = math::log(sum[r]);
  for (int64_t r = 0; r < rows; ++r) out[r] = {max[r], sum[r]};
}

/// gx = p * total - smooth * weight; without label smoothing weight is null, as an infinite one of
/// another class than the target must not turn the product into NaN. The target's entry is the
/// caller's.
template <class T, class A = compute_t<T>>
void gradient_row(const T* __restrict x, int64_t n, LogSumExp<A> s, A total, A smooth,
                  const A* __restrict weight, T* __restrict gx) {
  if (weight == nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      gx[i] = T(math::exp(to<A>(x[i]) - s.max - s.log_sum) * total);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      gx[i] = T(math::exp(to<A>(x[i]) - s.max - s.log_sum) * total - smooth * weight[i]);
    }
  }
}

// The same for up to kGroup short rows.
template <class T, class A = compute_t<T>>
void gradient_of_rows(const T* x, int64_t rows, int64_t n, const A* stats, const A* total,
                      const A* smooth, const A* weight, T* gx) {
  A columns[kSmall][kGroup], max[kGroup], log_sum[kGroup];
  for (int64_t r = 0; r < kGroup; ++r) {
    const int64_t from = std::min(r, rows - 1);
    max[r] = stats[3 * from];
    log_sum[r] = stats[3 * from + 1];
    for (int64_t i = 0; i < n; ++i) columns[i][r] = to<A>(x[from * n + i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < kGroup; ++r) {
      columns[i][r] = math::exp(columns[i][r] - max[r] - log_sum[r]) * total[r];
    }
  }
  for (int64_t i = 0; weight != nullptr && i < n; ++i) {
    for (int64_t r = 0; r < kGroup; ++r) columns[i][r] -= smooth[r] * weight[i];
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) gx[r * n + i] = T(columns[i][r]);
  }
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight,
                   int64_t ignore_index, double smoothing, const Tensor& loss, const Tensor& stats,
                   const Tensor& totals, Stream) {
  const int64_t rows = logits.sizes()[0], n = logits.sizes()[1];
  const int64_t* labels = target.data<int64_t>();
  visit_floating(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    const ClassWeights<A> weights(weight, n);
    const T* data = static_cast<const T*>(logits.data());
    const auto row_loss = [&](int64_t r, LogSumExp<A> s) {
      const T* x = data + r * n;
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
          value -=
              smoothing / static_cast<double>(n) * smoothed_sum<T>(x, n, s, weights.values.data());
        }
      }
      static_cast<A*>(loss.data())[r] = static_cast<A>(value);
    };
    const int64_t group = n <= kSmall ? kGroup : 1;
    parallel_for((rows + group - 1) / group, grain_for(4 * n * group),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin * group; r < std::min(rows, end * group); r += group) {
                     LogSumExp<A> s[kGroup];
                     const int64_t count = std::min(group, rows - r);
                     if (group == 1) {
                       s[0] = log_sum_exp<T>(data + r * n, n);
                     } else {
                       log_sum_exp_of_rows<T>(data + r * n, count, n, s);
                     }
                     for (int64_t i = 0; i < count; ++i) row_loss(r + i, s[i]);
                   }
                 });
    double sum = 0, weight_sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      sum += static_cast<const A*>(loss.data())[r];
      weight_sum += static_cast<const A*>(stats.data())[3 * r + 2];
    }
    A* total = static_cast<A*>(totals.data());
    total[0] = static_cast<A>(sum);
    total[1] = static_cast<A>(weight_sum);
    total[2] = static_cast<A>(sum / weight_sum);
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
    const A* spread = smoothing > 0 ? weights.values.data() : nullptr;
    const double spread_sum = smoothing > 0 ? weights.sum : 0;
    const T* data = static_cast<const T*>(logits.data());
    T* out = static_cast<T*>(glogits.data());
    const A* stat = static_cast<const A*>(stats.data());
    const int64_t group = n <= kSmall ? kGroup : 1;
    const auto rows_gradient = [&](int64_t first, int64_t count) {
      A total[kGroup] = {}, smooth[kGroup] = {};
      double g[kGroup], kept[kGroup];
      for (int64_t i = 0; i < count; ++i) {
        const int64_t label = labels[first + i];
        if (label == ignore_index) continue;
        g[i] = static_cast<const A*>(gloss.data())[(first + i) * gloss.strides()[0]];
        kept[i] = (1 - smoothing) * weights.values[label];
        total[i] = static_cast<A>(g[i] * (kept[i] + share * spread_sum));
        smooth[i] = static_cast<A>(g[i] * share);
      }
      const T* x = data + first * n;
      const A* s = stat + 3 * first;
      T* gx = out + first * n;
      if (group == 1) {
        gradient_row<T>(x, n, {s[0], s[1]}, total[0], smooth[0], spread, gx);
      } else {
        gradient_of_rows<T>(x, count, n, s, total, smooth, spread, gx);
      }
      for (int64_t i = 0; i < count; ++i, x += n, s += 3, gx += n) {
        const int64_t label = labels[first + i];
        if (label == ignore_index) {
          for (int64_t c = 0; c < n; ++c) gx[c] = T(A(0));
          continue;
        }
        // The target's entry again, in one rounding.
        const A p = math::exp(to<A>(x[label]) - s[0] - s[1]);
        const A off = spread ? smooth[i] * spread[label] : A(0);
        gx[label] = T(static_cast<A>(p * static_cast<double>(total[i]) - g[i] * kept[i]) - off);
      }
    };
    parallel_for((rows + group - 1) / group, grain_for(4 * n * group),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin * group; r < std::min(rows, end * group); r += group) {
                     rows_gradient(r, std::min(group, rows - r));
                   }
                 });
  });
}

}  // namespace tarn::cpu
