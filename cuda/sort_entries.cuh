// sort_entries.cuh - what is sorted: an order-preserving key and the position it came from.
//
// Keys are unsigned integers that compare as the values do: NaN above all, both zeros equal, and
// complemented where the largest comes first. With the position as lower part every entry is
// different, so that any sort is stable, and the sorting kernels know no element type: values of up
// to 32 bits make one 64-bit integer, wider ones a pair.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "tarn/core/cast.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {

/// Key of a value, ascending.
template <class T>
__device__ __forceinline__ auto sort_key(T value) {
  using C = compute_t<T>;
  using U = std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>;
  constexpr U kSign = U(1) << (8 * sizeof(U) - 1);
  if constexpr (std::is_floating_point_v<C>) {
    const C x = cast_value<C>(value);
    const U bits = x == C(0) ? U(0) : std::bit_cast<U>(x);
    if (x != x) return ~U(0);
    return (bits & kSign) ? ~bits : bits | kSign;
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<U>(value) ^ kSign;
  } else {
    return static_cast<U>(value);
  }
}

using NarrowEntry = uint64_t;  // key above, position below

struct alignas(16) WideEntry {
  uint64_t key, position;
};

__device__ __forceinline__ bool operator<(const WideEntry& a, const WideEntry& b) {
  return a.key != b.key ? a.key < b.key : a.position < b.position;
}

template <class T>
using EntryOf = std::conditional_t<sizeof(compute_t<T>) == 8, WideEntry, NarrowEntry>;

__device__ __forceinline__ NarrowEntry make_entry(uint32_t key, int64_t position) {
  return (static_cast<uint64_t>(key) << 32) | static_cast<uint32_t>(position);
}
__device__ __forceinline__ WideEntry make_entry(uint64_t key, int64_t position) {
  return {key, static_cast<uint64_t>(position)};
}
__device__ __forceinline__ int64_t position_of(NarrowEntry e) {
  return static_cast<int64_t>(e & 0xFFFFFFFFu);
}
__device__ __forceinline__ int64_t position_of(const WideEntry& e) {
  return static_cast<int64_t>(e.position);
}

/// Behind every entry.
template <class Entry>
__device__ __forceinline__ Entry last_entry() {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  if constexpr (std::is_same_v<Entry, WideEntry>) {
    return {kMost, kMost};
  } else {
    return kMost;
  }
}

}  // namespace tarn::cuda
