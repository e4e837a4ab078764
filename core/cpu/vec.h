// vec.h - vectors for reductions, whose accumulators must stay in registers.
//
// Loops without a carried sum need none of this: the compiler vectorises them. A reduction may not
// be reordered by the compiler, so its lanes are written out here, with GCC's vector extension, as
// wide as the target's registers.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tarn/core/cpu/fold_lanes.h"
#include "tarn/core/cpu/vector_bytes.h"
#include "tarn/core/dtype.h"
#include "tarn/core/mul_add.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // all of this is inlined: no ABI is involved

namespace tarn::cpu {

template <class A, int kLanes>
struct VecOf {
  typedef A type __attribute__((vector_size(sizeof(A) * kLanes)));
};
template <class A>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(A));
template <class A>
using Vec = typename VecOf<A, kLanes<A>>::type;

#define TARN_INLINE inline __attribute__((always_inline))

template <class A>
TARN_INLINE Vec<A> broadcast(A value) {
  return value - Vec<A>{};
}

template <class T>
inline constexpr bool is_half_type = std::is_same_v<T, half> || std::is_same_v<T, bfloat16>;

/// 16-bit floats widened, exactly as half::to_float and bfloat16's conversion.
template <class T, int kCount>
TARN_INLINE auto load_halves(const T* p) {
  using F = typename VecOf<float, kCount>::type;
  using U = typename VecOf<uint32_t, kCount>::type;
  using S = typename VecOf<uint16_t, kCount>::type;
  S raw;
  std::memcpy(&raw, p, sizeof(raw));
  const U h = __builtin_convertvector(raw, U);
  if constexpr (std::is_same_v<T, bfloat16>) {
    return reinterpret_cast<F>(h << 16);
  } else {
    const U a = h & 0x7FFFu;
    const U scaled = reinterpret_cast<U>(reinterpret_cast<F>(a << 13) * 0x1p112f);
    const U special = (a << 13) | 0x7F800000u;
    const U r = a >= 0x7C00u ? special : scaled;
    return reinterpret_cast<F>(r | ((h & 0x8000u) << 16));
  }
}

/// kLanes<A> elements at p (any alignment), converted to A.
template <class A, class T>
TARN_INLINE Vec<A> load(const T* p) {
  constexpr int n = kLanes<A>;
  if constexpr (is_half_type<T>) {
    return __builtin_convertvector((load_halves<T, n>(p)), Vec<A>);
  } else {
    using E = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
    typename VecOf<E, n>::type raw;
    std::memcpy(&raw, p, sizeof(raw));
    return __builtin_convertvector(raw, Vec<A>);
  }
}

/// An element as A; half and bfloat16 by way of float.
template <class A, class T>
TARN_INLINE A to(T x) {
  if constexpr (is_half_type<T>) {
    return static_cast<A>(static_cast<float>(x));
  } else {
    return static_cast<A>(x);
  }
}

/// Items of about `elements` elements each that make a part worth a thread of its own.
inline int64_t grain_for(int64_t elements) {
  constexpr int64_t kElements = 32768;
  return elements >= kElements ? 1 : kElements / (elements > 0 ? elements : 1);
}

}  // namespace tarn::cpu
