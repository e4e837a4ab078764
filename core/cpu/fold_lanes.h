// fold_lanes.h - one value from the lanes of a vector.
#pragma once

#include <cstddef>
#include <cstring>
#include <iterator>
#include <type_traits>

namespace tarn::cpu {

/// Folds the lanes of a vector (of GCC's extension) pairwise: join(lane i, lane i + half).
template <class V, class Join>
inline __attribute__((always_inline)) auto fold_lanes(V v, Join join) {
  using A = std::remove_cvref_t<decltype(v[0])>;
  A lanes[sizeof(V) / sizeof(A)];
  std::memcpy(lanes, &v, sizeof(lanes));
#pragma GCC unroll 4
  for (size_t half = std::size(lanes) / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] = join(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}

template <class V>
inline __attribute__((always_inline)) auto sum_lanes(V v) {
  return fold_lanes(v, [](auto a, auto b) { return a + b; });
}

}  // namespace tarn::cpu
