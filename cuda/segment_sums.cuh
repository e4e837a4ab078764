// segment_sums.cuh - sums over the segments of an order (radix_sort.h); long ones are shared.
//
// A thread adds a segment of up to `length` entries in their order. Of a longer one it adds those
// before a cut, the first multiple of `length` that is at least `length` entries away. From there
// on each stretch between two cuts, a part, has had a thread of its own in a kernel before, and the
// parts are added in their order. `length` is about the square root of the number of entries, so
// that both walks are short; what is added to what depends on the keys alone.
#pragma once

#include "tarn/cuda/launch.h"
#include "tarn/cuda/radix_sort.h"

namespace tarn::cuda {

/// An order and its cuts.
struct SegmentCuts {
  const uint32_t* order;
  uint32_t* parts;  ///< entry q: q, marked as a start unless the segment of cut q - 1 goes on there
  int64_t n;
  int64_t length;  ///< a power of two
  int64_t count;   ///< of cuts, with that at 0

  /// The cut at which the thread of the segment that begins at `first` stops.
  __device__ __forceinline__ int64_t cut_after(int64_t first) const {
    return (first + 2 * length - 1) & ~(length - 1);
  }
  __device__ __forceinline__ int64_t until(int64_t cut) const { return cut < n ? cut : n; }
  /// True if a segment that was followed to `at` goes on at `cut`.
  __device__ __forceinline__ bool goes_on(int64_t at, int64_t cut) const {
    return at == cut && cut < n && !(order[cut] & kSegmentStart);
  }
};

/// SegmentCuts and their memory.
class SegmentParts {
 public:
  SegmentParts(const SegmentOrder& order, int64_t n, Stream stream)
      : SegmentParts(order, n, length_for(n), stream) {}
  const SegmentCuts& cuts() const { return cuts_; }

 private:
  SegmentParts(const SegmentOrder& order, int64_t n, int64_t length, Stream stream)
      : marks_(static_cast<size_t>(ceil_div(n, length)) * sizeof(uint32_t), stream),
        cuts_{order.data(), marks_.as<uint32_t>(), n, length, ceil_div(n, length)} {}
  static int64_t length_for(int64_t n) {
    int64_t length = 256;
    while (length * length < n) length *= 2;
    return length;
  }

  Scratch marks_;
  SegmentCuts cuts_;
};

/// Calls add(load(entry)) for the entries from `at` on, up to `end` or the next start; returns
/// where it stopped. Several are loaded before the first of them is added.
template <class Load, class Add>
__device__ __forceinline__ int64_t add_entries(const uint32_t* order, int64_t at, int64_t end,
                                               Load load, Add add) {
  constexpr int kAhead = 8;
  int count;
  do {
    decltype(load(0u)) loaded[kAhead];
    bool more = true;
    count = 0;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const uint32_t next = at + j < end ? order[at + j] : kSegmentStart;
      more = more && !(next & kSegmentStart);
      if (more) {
        loaded[j] = load(next);
        count = j + 1;
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (j < count) add(loaded[j]);
    }
    at += count;
  } while (count == kAhead);
  return at;
}

/// Adds the segment that begins at `first`; load_part(q) gives what add_part_of made of cut q.
template <class Load, class Add, class LoadPart, class AddPart>
__device__ __forceinline__ void add_segment(const SegmentCuts& cuts, int64_t first, Load load,
                                            Add add, LoadPart load_part, AddPart add_part) {
  add(load(cuts.order[first] & kPositionMask));
  const int64_t cut = cuts.cut_after(first);
  const int64_t at = add_entries(cuts.order, first + 1, cuts.until(cut), load, add);
  if (!cuts.goes_on(at, cut)) return;
  const int64_t q = cut / cuts.length;
  add_part(load_part(static_cast<uint32_t>(q)));
  add_entries(cuts.parts, q + 1, cuts.count, load_part, add_part);
}

/// Adds part q of the segment that goes on at cut q; does nothing where one begins. `marks`: for
/// one thread per part.
template <class Load, class Add>
__device__ __forceinline__ void add_part_of(const SegmentCuts& cuts, int64_t q, bool marks,
                                            Load load, Add add) {
  const int64_t from = q * cuts.length, cut = from + cuts.length;
  // Where a segment begins nothing is added, and it stops at once.
  const int64_t at = add_entries(cuts.order, from, cuts.until(cut), load, add);
  if (!marks || q + 1 == cuts.count) return;
  const auto next = static_cast<uint32_t>(q + 1);
  cuts.parts[next] = next | (cuts.goes_on(at, cut) ? 0 : kSegmentStart);
}

}  // namespace tarn::cuda
