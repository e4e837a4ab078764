// reduce.cpp - combines the values of several ranks, block by block in the first-level cache.
//
// Bytes: reads every input once, writes the result once; the accumulator never leaves the cache.
#include "tarn/dist/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace tarn::dist {
namespace {

constexpr int64_t kBlock = 2048;  // 16 KiB of f64: half of a first-level cache

// Signed sums and products wrap as unsigned ones do; on the signed type that would be undefined.
template <class T>
using arithmetic_t =
    typename std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>,
                                std::make_unsigned<T>, std::type_identity<T>>::type;

template <ReduceOp op, class T>
T combine(T a, T b) {
  using U = arithmetic_t<T>;
  if constexpr (std::is_same_v<T, bool>) {
    constexpr bool any = op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBitOr;
    return any ? a | b : a & b;
  } else if constexpr (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else if constexpr (op == ReduceOp::kProduct) {
    // u8 * u8 is computed as int, which is wide enough.
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  } else if constexpr (op == ReduceOp::kMin) {
    return (a != a) | (a < b) ? a : b;  // a NaN, from either side, stays
  } else if constexpr (op == ReduceOp::kMax) {
    return (a != a) | (a > b) ? a : b;
  } else if constexpr (std::is_integral_v<T>) {
    return op == ReduceOp::kBitAnd ? static_cast<T>(a & b) : static_cast<T>(a | b);
  } else {
    return a;  // refused before: no bits of floating values
  }
}

template <ReduceOp op, class T>
void fold_typed(std::span<const void* const> inputs, T* out, int64_t n) {
  using A = compute_t<T>;
  A sum[kBlock];
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t m = std::min(kBlock, n - start);
    const T* first = static_cast<const T*>(inputs[0]) + start;
    for (int64_t i = 0; i < m; ++i) sum[i] = static_cast<A>(first[i]);
    for (const void* input : inputs.subspan(1)) {
      const T* x = static_cast<const T*>(input) + start;
      for (int64_t i = 0; i < m; ++i) sum[i] = combine<op, A>(sum[i], static_cast<A>(x[i]));
    }
    if constexpr (op == ReduceOp::kAvg) {
      const A count = static_cast<A>(inputs.size());
      for (int64_t i = 0; i < m; ++i) sum[i] = static_cast<A>(sum[i] / count);
    }
    for (int64_t i = 0; i < m; ++i) out[start + i] = static_cast<T>(sum[i]);
  }
}

}  // namespace

void fold(ReduceOp op, DType dtype, std::span<const void* const> inputs, void* out, int64_t n) {
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    T* to = static_cast<T*>(out);
    switch (op) {
      case ReduceOp::kSum:
        return fold_typed<ReduceOp::kSum>(inputs, to, n);
      case ReduceOp::kAvg:
        return fold_typed<ReduceOp::kAvg>(inputs, to, n);
      case ReduceOp::kMin:
        return fold_typed<ReduceOp::kMin>(inputs, to, n);
      case ReduceOp::kMax:
        return fold_typed<ReduceOp::kMax>(inputs, to, n);
      case ReduceOp::kProduct:
        return fold_typed<ReduceOp::kProduct>(inputs, to, n);
      case ReduceOp::kBitAnd:
        return fold_typed<ReduceOp::kBitAnd>(inputs, to, n);
      case ReduceOp::kBitOr:
        return fold_typed<ReduceOp::kBitOr>(inputs, to, n);
    }
  });
}

}  // namespace tarn::dist
