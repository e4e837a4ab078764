// radix_sort.h - stable sorting of integer keys, and the order of equal keys.
#pragma once

#include <cstdint>

#include "tarn/cuda/scratch.h"

namespace tarn::cuda {

/// Two buffers of n keys and n values each; the sorted ones end in `keys` and `values`.
template <class Key>
struct SortBuffers {
  Key *keys, *spare_keys;
  uint32_t *values, *spare_values;
};

/// Sorts keys in [0, 2^bits) ascending, equal ones in their order; `values` become the positions
/// that the keys came from. n < 2^31. Key: uint32_t or uint64_t. At most `most` blocks share
/// the work; how many does not change the result.
template <class Key>
void radix_sort(SortBuffers<Key>& buffers, int64_t n, int bits, Stream stream, int64_t most = 1024);

/// Marks the first of several equal keys in an order of positions.
inline constexpr uint32_t kSegmentStart = uint32_t{1} << 31;
inline constexpr uint32_t kPositionMask = kSegmentStart - 1;

/// Positions of keys, ordered by key, then by position; the first of each run of equal keys carries
/// kSegmentStart.
class SegmentOrder {
 public:
  /// Keys in [0, limit], 1 <= n < 2^31; the array is used up.
  template <class Key>
  SegmentOrder(Key* keys, int64_t n, int64_t limit, Stream stream);
  const uint32_t* data() const { return order_.as<const uint32_t>(); }

 private:
  Scratch order_;
};

}  // namespace tarn::cuda
