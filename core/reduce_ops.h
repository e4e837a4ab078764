// reduce_ops.h - what each reduction does to one element, on the CPU and on the device.
//
// Written for scalars, and for vectors of the host compiler, which fold several elements at once.
// Lane: the type elements are folded in, chunk by chunk. Wide: the type chunks are merged in.
// step(acc, x) takes an element, join(a, b) two accumulators, merge two wide results.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "tarn/core/dtype.h"
#include "tarn/core/kernels/reduce.h"
#include "tarn/core/math.h"

namespace tarn {

template <class T>
inline constexpr bool is_float_type = !std::is_integral_v<T>;
// Sums of integers wrap, so they run in unsigned arithmetic.
template <class T>
using SumLane = std::conditional_t<is_float_type<T>, compute_t<T>, uint64_t>;
template <class T>
using SumWide = std::conditional_t<is_float_type<T>, double, uint64_t>;
template <class T>
using OrderLane = std::conditional_t<is_float_type<T>, compute_t<T>, int64_t>;

template <class T>
struct SumOp {
  using Lane = SumLane<T>;
  using Wide = SumWide<T>;
  TARN_HD Lane init() const { return 0; }
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return acc + x;
  }
  template <class V>
  TARN_HD V join(V a, V b) const {
    return a + b;
  }
};

template <class T>
struct ProdOp {
  using Lane = SumWide<T>;
  using Wide = SumWide<T>;
  TARN_HD Lane init() const { return 1; }
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return acc * x;
  }
  template <class V>
  TARN_HD V join(V a, V b) const {
    return a * b;
  }
};

template <class T>
struct MaxOp {
  using Lane = OrderLane<T>;
  using Wide = Lane;
  TARN_HD Lane init() const {
    if constexpr (is_float_type<T>) {
      return -std::numeric_limits<Lane>::infinity();
    } else {
      return std::numeric_limits<Lane>::lowest();
    }
  }
  /// NaN wins and stays: x > NaN is false.
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return ((x > acc) | (x != x)) ? x : acc;
  }
  template <class V>
  TARN_HD V join(V a, V b) const {
    return step(a, b);
  }
};

template <class T>
struct MinOp {
  using Lane = OrderLane<T>;
  using Wide = Lane;
  TARN_HD Lane init() const {
    if constexpr (is_float_type<T>) {
      return std::numeric_limits<Lane>::infinity();
    } else {
      return std::numeric_limits<Lane>::max();
    }
  }
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return ((x < acc) | (x != x)) ? x : acc;
  }
  template <class V>
  TARN_HD V join(V a, V b) const {
    return step(a, b);
  }
};

template <class T>
struct AnyOp {
  using Lane = OrderLane<T>;
  using Wide = Lane;
  TARN_HD Lane init() const { return 0; }
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return (x != V{}) ? V{} + Lane(1) : acc;
  }
  template <class V>
  TARN_HD V join(V a, V b) const {
    return step(a, b);
  }
};

template <class T>
struct AllOp {
  using Lane = OrderLane<T>;
  using Wide = Lane;
  TARN_HD Lane init() const { return 1; }
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return (x == V{}) ? V{} : acc;
  }
  template <class V>
  TARN_HD V join(V a, V b) const {
    return step(a, b);
  }
};

/// |x| with +0 for both zeros; NaN stays.
template <class V>
TARN_HD V magnitude(V x) {
  return (x <= V{}) ? V{} - x : x;
}

/// Number of elements that are not zero.
template <class T>
struct CountOp : SumOp<T> {
  using Lane = compute_t<T>;
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return acc + ((x != V{}) ? V{} + Lane(1) : V{});
  }
};

template <class T>
struct AbsSumOp : SumOp<T> {
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return acc + magnitude(x);
  }
};

/// In double, so that squares of any f32 are finite.
template <class T>
struct SquareSumOp : SumOp<T> {
  using Lane = double;
  TARN_HD Lane init() const { return 0; }
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return acc + x * x;
  }
};

template <class T>
struct PowerSumOp : SumOp<T> {
  using Lane = double;
  double p = 1;
  TARN_HD Lane init() const { return 0; }
  template <class V>
  TARN_HD V step(V acc, V x) const {
    if constexpr (std::is_arithmetic_v<V>) {
      return acc + math::pow(math::abs(x), p);
    } else {
      for (int i = 0; i < static_cast<int>(sizeof(V) / sizeof(double)); ++i)
        acc[i] += math::pow(math::abs(x[i]), p);
      return acc;
    }
  }
};

template <class T>
struct AbsMaxOp : MaxOp<T> {
  using Lane = OrderLane<T>;
  TARN_HD Lane init() const { return 0; }
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return MaxOp<T>::step(acc, magnitude(x));
  }
};

template <class T>
struct AbsMinOp : MinOp<T> {
  template <class V>
  TARN_HD V step(V acc, V x) const {
    return MinOp<T>::step(acc, magnitude(x));
  }
};

/// What becomes of a folded value before it is stored.
struct Finish {
  enum Kind : uint8_t { kNone, kDivide, kSqrt, kRoot } kind = kNone;
  double argument = 0;  ///< the divisor, or the exponent of the root
};

/// Calls run(operation, finish) for sum, mean, prod, max, min, any or all of elements T, `count` of
/// which make an output.
template <class T, class F>
void visit_reduction(ReduceOp op, double count, F&& run) {
  switch (op) {
    case ReduceOp::kSum:
      return run(SumOp<T>(), Finish{});
    case ReduceOp::kMean:
      return run(SumOp<T>(), Finish{Finish::kDivide, count});
    case ReduceOp::kProd:
      return run(ProdOp<T>(), Finish{});
    case ReduceOp::kMax:
      return run(MaxOp<T>(), Finish{});
    case ReduceOp::kMin:
      return run(MinOp<T>(), Finish{});
    case ReduceOp::kAny:
      return run(AnyOp<T>(), Finish{});
    default:
      return run(AllOp<T>(), Finish{});
  }
}

/// The same for the norms of ReduceOp, kNorm0 and after.
template <class T, class F>
void visit_norm(ReduceOp op, double p, F&& run) {
  switch (op) {
    case ReduceOp::kNorm0:
      return run(CountOp<T>(), Finish{});
    case ReduceOp::kNorm1:
      return run(AbsSumOp<T>(), Finish{});
    case ReduceOp::kNorm2:
      return run(SquareSumOp<T>(), Finish{Finish::kSqrt});
    case ReduceOp::kSumSquares:
      return run(SquareSumOp<T>(), Finish{});
    case ReduceOp::kNormInf:
      return run(AbsMaxOp<T>(), Finish{});
    case ReduceOp::kNormNegInf:
      return run(AbsMinOp<T>(), Finish{});
    default: {
      PowerSumOp<T> power;
      power.p = p;
      return run(power, Finish{Finish::kRoot, 1.0 / p});
    }
  }
}

}  // namespace tarn
