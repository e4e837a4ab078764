// reduce_ops.h - what each reduction does to one element, for vectors and scalars alike.
//
// Lane: the type elements are folded in, chunk by chunk. Wide: the type chunks are merged in.
// step(acc, x) takes an element, join(a, b) two accumulators, merge two wide results.
#pragma once

#include <cmath>
#include <limits>

#include "tarn/core/cpu/vec.h"

namespace tarn::cpu {

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
  Lane init() const { return 0; }
  template <class V>
  V step(V acc, V x) const {
    return acc + x;
  }
  template <class V>
  V join(V a, V b) const {
    return a + b;
  }
};

template <class T>
struct ProdOp {
  using Lane = SumWide<T>;
  using Wide = SumWide<T>;
  Lane init() const { return 1; }
  template <class V>
  V step(V acc, V x) const {
    return acc * x;
  }
  template <class V>
  V join(V a, V b) const {
    return a * b;
  }
};

template <class T>
struct MaxOp {
  using Lane = OrderLane<T>;
  using Wide = Lane;
  Lane init() const {
    if constexpr (is_float_type<T>) return -std::numeric_limits<Lane>::infinity();
    return std::numeric_limits<Lane>::lowest();
  }
  /// NaN wins and stays: x > NaN is false.
  template <class V>
  V step(V acc, V x) const {
    return ((x > acc) | (x != x)) ? x : acc;
  }
  template <class V>
  V join(V a, V b) const {
    return step(a, b);
  }
};

template <class T>
struct MinOp {
  using Lane = OrderLane<T>;
  using Wide = Lane;
  Lane init() const {
    if constexpr (is_float_type<T>) return std::numeric_limits<Lane>::infinity();
    return std::numeric_limits<Lane>::max();
  }
  template <class V>
  V step(V acc, V x) const {
    return ((x < acc) | (x != x)) ? x : acc;
  }
  template <class V>
  V join(V a, V b) const {
    return step(a, b);
  }
};

template <class T>
struct AnyOp {
  using Lane = OrderLane<T>;
  using Wide = Lane;
  Lane init() const { return 0; }
  template <class V>
  V step(V acc, V x) const {
    return (x != V{}) ? V{} + Lane(1) : acc;
  }
  template <class V>
  V join(V a, V b) const {
    return step(a, b);
  }
};

template <class T>
struct AllOp {
  using Lane = OrderLane<T>;
  using Wide = Lane;
  Lane init() const { return 1; }
  template <class V>
  V step(V acc, V x) const {
    return (x == V{}) ? V{} : acc;
  }
  template <class V>
  V join(V a, V b) const {
    return step(a, b);
  }
};

/// |x| with +0 for both zeros; NaN stays.
template <class V>
TARN_INLINE V magnitude(V x) {
  return (x <= V{}) ? V{} - x : x;
}

/// Number of elements that are not zero.
template <class T>
struct CountOp : SumOp<T> {
  using Lane = compute_t<T>;
  template <class V>
  V step(V acc, V x) const {
    return acc + ((x != V{}) ? V{} + Lane(1) : V{});
  }
};

template <class T>
struct AbsSumOp : SumOp<T> {
  template <class V>
  V step(V acc, V x) const {
    return acc + magnitude(x);
  }
};

/// In double, so that squares of any f32 are finite.
template <class T>
struct SquareSumOp : SumOp<T> {
  using Lane = double;
  Lane init() const { return 0; }
  template <class V>
  V step(V acc, V x) const {
    return acc + x * x;
  }
};

template <class T>
struct PowerSumOp : SumOp<T> {
  using Lane = double;
  double p = 1;
  Lane init() const { return 0; }
  template <class V>
  V step(V acc, V x) const {
    if constexpr (std::is_arithmetic_v<V>) {
      return acc + std::pow(std::abs(x), p);
    } else {
      for (int i = 0; i < kLanes<double>; ++i) acc[i] += std::pow(std::abs(x[i]), p);
      return acc;
    }
  }
};

template <class T>
struct AbsMaxOp : MaxOp<T> {
  using Lane = OrderLane<T>;
  Lane init() const { return 0; }
  template <class V>
  V step(V acc, V x) const {
    return MaxOp<T>::step(acc, magnitude(x));
  }
};

template <class T>
struct AbsMinOp : MinOp<T> {
  template <class V>
  V step(V acc, V x) const {
    return MinOp<T>::step(acc, magnitude(x));
  }
};

/// Folds n adjacent elements.
template <class Op, class T>
typename Op::Wide fold_chunk(const Op& op, const T* x, int64_t n) {
  using A = typename Op::Lane;
  using V = Vec<A>;
  constexpr int L = kLanes<A>;
  A rest = op.init();
  int64_t i = 0;
  if (n >= L) {
    V a = broadcast(op.init()), b = a, c = a, d = a;
    for (; i + 4 * L <= n; i += 4 * L) {
      a = op.step(a, load<A>(x + i));
      b = op.step(b, load<A>(x + i + L));
      c = op.step(c, load<A>(x + i + 2 * L));
      d = op.step(d, load<A>(x + i + 3 * L));
    }
    for (; i + L <= n; i += L) a = op.step(a, load<A>(x + i));
    a = op.join(op.join(a, b), op.join(c, d));
    rest = fold_lanes<A>(a, [&op](A p, A q) { return op.join(p, q); });
  }
  for (; i < n; ++i) rest = op.step(rest, to<A>(x[i]));
  return static_cast<typename Op::Wide>(rest);
}

}  // namespace tarn::cpu
