// cross_entropy.cu - softmax and cross entropy in one pass over the logits, and its gradient.
//
// Some lanes, a warp or a block take a row. Forward reads size(T) bytes per logit and writes four
// numbers per row (label smoothing reads the row again, mostly from the caches); the probabilities
// are never stored. Backward reads and writes size(T) bytes per logit.
#include "tarn/cuda/row.cuh"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/softmax.h"

namespace tarn::cuda {
namespace {

constexpr int kTotalThreads = 512;

/// Class weights in the accumulation type, and their sum; 1 each where there are none.
template <class A>
struct ClassWeights {
  const A* values;    ///< null: 1 each
  const double* sum;  ///< null: the number of classes

  __device__ __forceinline__ A of(int64_t c) const { return values ? values[c] : A(1); }
};

/// Converts the weights and adds them up, in one block.
template <class W, class A>
__global__ void __launch_bounds__(kTotalThreads)
    convert_weights(const W* weight, int64_t classes, A* values, double* sum) {
  __shared__ double shared[kWarp];
  double total = 0;
  for (int64_t c = threadIdx.x; c < classes; c += kTotalThreads) {
    values[c] = cast_value<A>(weight[c]);
    total += cast_value<double>(weight[c]);
  }
  total = block_reduce(total, 0.0, shared, Sum());
  if (threadIdx.x == 0) *sum = total;
}

/// The device memory behind ClassWeights.
template <class A>
class ClassWeightsBuffer {
 public:
  ClassWeightsBuffer(const Tensor& weight, Stream stream)
      : memory_(weight.defined() ? kSumBytes + static_cast<size_t>(weight.numel()) * sizeof(A) : 0,
                stream) {
    if (!weight.defined()) return;
    double* sum = memory_.template as<double>();
    A* values = reinterpret_cast<A*>(memory_.template as<char>() + kSumBytes);
    visit_floating(weight.dtype(), [&](auto tag) {
      using W = typename decltype(tag)::type;
      launch(convert_weights<W, A>, 1, kTotalThreads, 0, stream,
             static_cast<const W*>(weight.data()), weight.numel(), values, sum);
    });
    weights_ = {values, sum};
  }
  ClassWeights<A> get() const { return weights_; }

 private:
  static constexpr size_t kSumBytes = 16;
  Scratch memory_;
  ClassWeights<A> weights_{nullptr, nullptr};
};

template <class T>
struct CrossEntropyJob {
  using A = compute_t<T>;
  const T* logits;
  const int64_t* target;
  ClassWeights<A> weights;
  int64_t rows, classes;
  int64_t ignore_index;
  double smoothing;
  A* stats;

  /// The label of a row, or -1 if it is ignored. So are labels out of range: the check that refuses
  /// them may speak up only after this kernel ran, which must not read beyond the row meanwhile.
  __device__ __forceinline__ int64_t label_of(int64_t row) const {
    const int64_t label = target[row];
    return label == ignore_index || label < 0 || label >= classes ? -1 : label;
  }
};

template <class T>
__global__ void __launch_bounds__(kRowBlock, 3)
    cross_entropy_rows(CrossEntropyJob<T> job, compute_t<T>* loss, int group) {
  using A = compute_t<T>;
  __shared__ MaxSum<A> shared[kWarp];
  __shared__ double shared_sums[kWarp];
  const RowPlace place(group);
  for (int64_t row = place.first; row < job.rows; row += place.step) {
    const T* x = job.logits + row * job.classes;
    MaxSum<A> s = MaxSum<A>::none();
    for_row(OneRow<T>{x}, job.classes, place.thread, group, true,
            [&](const auto& values, int64_t) { s.add(values); });
    s = reduce_row(s, MaxSum<A>::none(), group, shared, JoinMaxSum());
    const A log_sum = math::log(s.sum);
    double smoothed = 0;  // sum over classes of weight * log probability
    if (job.smoothing > 0) {
      for_row(OneRow<T>{x}, job.classes, place.thread, group, true,
              [&](const auto& values, int64_t at) {
                for (const T& v : values.v) {
                  smoothed += job.weights.of(at++) * (cast_value<A>(v) - s.max - log_sum);
                }
              });
      smoothed = reduce_row(smoothed, 0.0, group, shared_sums, Sum());
    }
    if (place.thread != 0) continue;
    const int64_t label = job.label_of(row);
    const bool kept = label >= 0;
    double value = 0;
    if (kept) {
      const A log_p = cast_value<A>(x[label]) - s.max - log_sum;
      value = -(1 - job.smoothing) * job.weights.of(label) * log_p;
      if (job.smoothing > 0) value -= job.smoothing / static_cast<double>(job.classes) * smoothed;
    }
    A* stat = job.stats + 3 * row;
    stat[0] = s.max;
    stat[1] = log_sum;
    stat[2] = kept ? job.weights.of(label) : A(0);
    loss[row] = static_cast<A>(value);
  }
}

struct Totals {
  double loss, weight;
  __device__ Totals operator+(const Totals& o) const { return {loss + o.loss, weight + o.weight}; }
};

/// What totals are made of: rows, or parts of them that were added up before.
template <class A>
struct RowTotals {
  const A *loss, *stats;
  __device__ __forceinline__ Totals at(int64_t row) const {
    return {static_cast<double>(loss[row]), static_cast<double>(stats[3 * row + 2])};
  }
};
struct PartTotals {
  const Totals* parts;
  __device__ __forceinline__ Totals at(int64_t part) const { return parts[part]; }
};

/// The sum of [begin, end), by a block.
template <class Source>
__device__ __forceinline__ Totals block_totals(const Source& source, int64_t begin, int64_t end,
                                               Totals* shared) {
  Totals sum = {0, 0};
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += kTotalThreads) sum = sum + source.at(i);
  return block_reduce(sum, Totals{0, 0}, shared, Sum());
}

/// parts[i] = totals of the rows [i * length, (i + 1) * length).
template <class A>
__global__ void __launch_bounds__(kTotalThreads)
    cross_entropy_parts(RowTotals<A> source, int64_t rows, int64_t length, int64_t count,
                        Totals* parts) {
  __shared__ Totals shared[kWarp];
  for (int64_t part = blockIdx.x; part < count; part += gridDim.x) {
    const int64_t begin = part * length;
    const Totals sum = block_totals(source, begin, min(begin + length, rows), shared);
    if (threadIdx.x == 0) parts[part] = sum;
  }
}

/// totals = {sum of loss, sum of the weights in stats, their quotient}, by one block.
template <class A, class Source>
__global__ void __launch_bounds__(kTotalThreads)
    cross_entropy_totals(Source source, int64_t n, A* totals) {
  __shared__ Totals shared[kWarp];
  const Totals sum = block_totals(source, 0, n, shared);
  if (threadIdx.x != 0) return;
  totals[0] = static_cast<A>(sum.loss);
  totals[1] = static_cast<A>(sum.weight);
  totals[2] = static_cast<A>(sum.loss / sum.weight);
}

/// Many rows are cut into parts that depend on their number only.
template <class A>
void add_up(const RowTotals<A>& source, int64_t rows, A* totals, Stream stream) {
  constexpr int64_t kPartRows = 4096, kMostRows = 16384;  // of one block
  if (rows <= kMostRows) {
    launch(cross_entropy_totals<A, RowTotals<A>>, 1, kTotalThreads, 0, stream, source, rows,
           totals);
    return;
  }
  const int64_t length = std::max(kPartRows, ceil_div(rows, kPartRows));
  const int64_t count = ceil_div(rows, length);
  const Scratch parts(static_cast<size_t>(count) * sizeof(Totals), stream);
  launch(cross_entropy_parts<A>, blocks_for(count, 1, stream), kTotalThreads, 0, stream, source,
         rows, length, count, parts.as<Totals>());
  launch(cross_entropy_totals<A, PartTotals>, 1, kTotalThreads, 0, stream,
         PartTotals{parts.as<Totals>()}, count, totals);
}

template <class T>
__global__ void __launch_bounds__(kRowBlock, sizeof(T) == 8 ? 2 : 3)
    cross_entropy_gradient(CrossEntropyJob<T> job, const compute_t<T>* gloss, int64_t gloss_stride,
                           T* glogits, int group, bool vectors) {
  using A = compute_t<T>;
  const RowPlace place(group);
  // Without smoothing the weights of other classes do not enter, be they infinite.
  const bool smooths = job.smoothing > 0;
  const double share = job.smoothing / static_cast<double>(job.classes);
  const double weight_sum = job.weights.sum ? *job.weights.sum : static_cast<double>(job.classes);
  const double smoothed = smooths ? share * weight_sum : 0;
  for (int64_t row = place.first; row < job.rows; row += place.step) {
    const T* x = job.logits + row * job.classes;
    T* to = glogits + row * job.classes;
    const int64_t label = job.label_of(row);
    const bool ignored = label < 0;
    const double g = ignored ? 0 : gloss[row * gloss_stride];
    const double kept = ignored ? 0 : (1 - job.smoothing) * job.weights.of(label);
    const A total = static_cast<A>(g * (kept + smoothed));
    const A smooth = smooths ? static_cast<A>(g * share) : A(0);
    const A max = job.stats[3 * row], log_sum = job.stats[3 * row + 1];
    for_row(OneRow<T>{x}, job.classes, place.thread, group, vectors, [&](auto values, int64_t at) {
      int64_t c = at;
      for (T& v : values.v) {
        const A p = math::exp(cast_value<A>(v) - max - log_sum);
        A value = p * total;
        // The target's entry in one rounding.
        if (c == label) value = static_cast<A>(p * static_cast<double>(total) - g * kept);
        if (smooth != A(0)) value -= smooth * job.weights.of(c);
        v = T(ignored ? A(0) : value);
        ++c;
      }
      store_vec(to + at, values);
    });
  }
}

template <class T>
CrossEntropyJob<T> make_job(const Tensor& logits, const Tensor& target,
                            const ClassWeights<compute_t<T>>& weights, int64_t ignore_index,
                            double smoothing, const Tensor& stats) {
  return {static_cast<const T*>(logits.data()),
          target.data<int64_t>(),
          weights,
          logits.sizes()[0],
          logits.sizes()[1],
          ignore_index,
          smoothing,
          static_cast<compute_t<T>*>(stats.data())};
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight,
                   int64_t ignore_index, double smoothing, const Tensor& loss_in,
                   const Tensor& stats, const Tensor& totals, Stream stream) {
  const int64_t rows = logits.sizes()[0], n = logits.sizes()[1];
  visit_floating(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    const ClassWeightsBuffer<A> weights(weight, stream);
    A* loss = static_cast<A*>(loss_in.data());
    const auto job = make_job<T>(logits, target, weights.get(), ignore_index, smoothing, stats);
    const int group = row_threads(n);
    launch(cross_entropy_rows<T>, blocks_for(rows, kRowBlock / group, stream), kRowBlock, 0, stream,
           job, loss, group);
    add_up(RowTotals<A>{loss, job.stats}, rows, static_cast<A*>(totals.data()), stream);
  });
}

void cross_entropy_backward(const Tensor& gloss, const Tensor& logits, const Tensor& target,
                            const Tensor& weight, int64_t ignore_index, double smoothing,
                            const Tensor& stats, const Tensor& glogits, Stream stream) {
  const int64_t rows = logits.sizes()[0], n = logits.sizes()[1];
  visit_floating(logits.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = compute_t<T>;
    const ClassWeightsBuffer<A> weights(weight, stream);
    const auto job = make_job<T>(logits, target, weights.get(), ignore_index, smoothing, stats);
    const int group = row_threads(n);
    T* to = static_cast<T*>(glogits.data());
    launch(cross_entropy_gradient<T>, blocks_for(rows, kRowBlock / group, stream), kRowBlock, 0,
           stream, job, static_cast<const A*>(gloss.data()), gloss.strides()[0], to, group,
           alike(job.logits, static_cast<const T*>(to)));
  });
}

}  // namespace tarn::cuda
