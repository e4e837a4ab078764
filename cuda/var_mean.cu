// var_mean.cu - variance and mean, and the positions of maxima and minima, along dimensions.
//
// Both are folds over the kernels of reduce.cuh. Variance: each thread sums the differences from
// its own first element, and their squares, in f64, so that at most the spread of its elements
// cancels; threads merge by Chan's formula (Chan, Golub, LeVeque 1979). One read of x.
#include "tarn/core/squared_deviations.h"
#include "tarn/cuda/reduce.cuh"
#include "tarn/cuda/reduce.h"
#include "tarn/cuda/reduce_fold.cuh"

namespace tarn::cuda {
namespace {

/// Count, mean and sum of squared deviations of a set.
struct Moments {
  double n, mean, m2;
};

struct MomentsOp {
  __device__ Moments join(const Moments& a, const Moments& b) const {
    if (b.n == 0) return a;
    if (a.n == 0) return b;
    const double n = a.n + b.n, delta = b.mean - a.mean, share = b.n / n;
    return {n, a.mean + delta * share, a.m2 + b.m2 + delta * delta * (a.n * share)};
  }
};

template <class T>
struct MomentsFold {
  using Op = MomentsOp;
  using Input = T;
  using Wide = Moments;
  static constexpr int kLanes = kVecWidth<T>;

  Op op;
  Moments total{0, 0, 0};
  double n = 0, shift = 0, sum = 0, squares = 0;

  __device__ explicit MomentsFold(const Op& op_in) : op(op_in) {}
  __device__ static Moments identity(const Op&) { return {0, 0, 0}; }

  __device__ __forceinline__ void add(const Vec<T, kLanes>& x, int64_t, int64_t) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) add_one(x.v[i], 0);
  }
  __device__ __forceinline__ void add_one(T x_in, int64_t) {
    const double x = cast_value<double>(x_in);
    if (n == 0) shift = x;
    const double d = x - shift;
    n += 1;
    sum += d;
    squares += d * d;
  }
  __device__ __forceinline__ void merge(const Moments& other) {
    total = op.join(total, other);
  }
  __device__ __forceinline__ Moments result() {
    if (n == 0) return total;
    const double off = sum / n, m2 = squared_deviations(sum, squares, off);
    return op.join(total, {n, shift + off, m2 < 0 ? 0 : m2});
  }
};

/// As in PyTorch: nothing to average gives NaN, too few degrees of freedom NaN or infinity.
struct MomentsStore {
  void *var, *mean;  ///< either may be null
  DType dtype;
  double freedom;

  __device__ void operator()(int64_t at, const Moments& m) const {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    if (var) store_as(var, dtype, at, m.n > 0 ? m.m2 / freedom : kNan);
    if (mean) store_as(mean, dtype, at, m.n > 0 ? m.mean : kNan);
  }
};

/// The best element so far; index -1: none.
template <class A>
struct Best {
  A value;
  int64_t index;
};

/// The larger (or smaller) of two, NaN first, then the first position.
template <class A>
struct BestOp {
  bool largest;

  __device__ Best<A> join(const Best<A>& a, const Best<A>& b) const {
    if (b.index < 0) return a;
    if (a.index < 0) return b;
    const bool a_nan = math::is_nan(a.value), b_nan = math::is_nan(b.value);
    if (a_nan != b_nan) return a_nan ? a : b;
    if (a_nan || a.value == b.value) return a.index < b.index ? a : b;
    return (a.value > b.value) == largest ? a : b;
  }
};

template <class T>
struct BestFold {
  using A = OrderLane<T>;
  using Op = BestOp<A>;
  using Input = T;
  using Wide = Best<A>;
  static constexpr int kLanes = 4;

  Op op;
  Wide best{0, -1};

  __device__ explicit BestFold(const Op& op_in) : op(op_in) {}
  __device__ static Wide identity(const Op&) { return {0, -1}; }

  __device__ __forceinline__ void add(const Vec<T, kLanes>& x, int64_t first, int64_t step) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) add_one(x.v[i], first + i * step);
  }
  __device__ __forceinline__ void add_one(T x, int64_t index) {
    best = op.join(best, {cast_value<A>(x), index});
  }
  __device__ __forceinline__ void merge(const Wide& other) {
    best = op.join(best, other);
  }
  __device__ __forceinline__ Wide result() {
    return best;
  }
};

struct BestStore {
  void* values;  ///< may be null
  DType dtype;
  int64_t* index;

  template <class A>
  __device__ void operator()(int64_t at, const Best<A>& best) const {
    index[at] = best.index;
    if (values) store_as(values, dtype, at, best.value);
  }
};

template <class T>
void best_of(bool largest, const Tensor& x, const BestStore& store, const ReducePlan& plan,
             Stream stream) {
  run_reduce<BestFold<T>, false>({largest}, store, plan, x.data(), stream);
}

}  // namespace

void var_mean(const Tensor& x, double correction, const Tensor& var, const Tensor& mean,
              Stream stream) {
  const Tensor& like = var.defined() ? var : mean;
  const ReducePlan plan = make_reduce_plan(x, like);
  const double freedom = std::max(0.0, static_cast<double>(plan.count) - correction);
  const MomentsStore store{var.data_or_null(), mean.data_or_null(), like.dtype(), freedom};
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    run_reduce<MomentsFold<T>>({}, store, plan, x.data(), stream);
  });
}

void arg_reduce(bool largest, const Tensor& x, int64_t /*dim*/, const Tensor& values,
                const Tensor& index, Stream stream) {
  const ReducePlan plan = make_reduce_plan(x, index);
  const BestStore store{values.data_or_null(), x.dtype(), index.data<int64_t>()};
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
    best_of<Element>(largest, x, store, plan, stream);
  });
}

}  // namespace tarn::cuda
