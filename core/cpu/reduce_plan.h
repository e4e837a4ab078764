// reduce_plan.h - the CPU's ways through a reduction plan.
//
// Two modes serve every layout. Columns: the fastest dimension of x is kept, and whole rows are
// folded into an array of accumulators. Rows: anything else; each output folds its elements, which
// are gathered into a buffer where they are not adjacent. Both cut the reduced index space at
// fixed places, so that results do not depend on the number of threads.
#pragma once

#include <algorithm>

#include "tarn/core/reduce_plan.h"

namespace tarn::cpu {

/// Copies elements [begin, begin + n) of the reduced space of one output into `to`.
template <class T>
void gather_reduced(const T* base, const ReducePlan& p, int64_t begin, int64_t n, T* to) {
  const int64_t size = p.reduced_size[0], stride = p.reduced_stride[0];
  int64_t inner = begin % size, outer = begin / size;
  while (n > 0) {
    const T* run = base + offset_at(outer, p.reduced - 1, p.reduced_size + 1, p.reduced_stride + 1);
    const int64_t length = std::min(n, size - inner);
    for (int64_t i = 0; i < length; ++i) to[i] = run[(inner + i) * stride];
    to += length;
    n -= length;
    inner = 0;
    ++outer;
  }
}

inline constexpr int64_t kChunk = 4096;  ///< elements that one call of a chunk function sees

/// Calls f(pointer, n) with elements [begin, end) of the reduced space, adjacent, kChunk at a time.
template <class T, class F>
void for_chunks(const T* base, const ReducePlan& p, int64_t begin, int64_t end, F&& f) {
  if (p.reduced == 0) return f(base, int64_t{1});
  const bool adjacent = p.reduced == 1 && p.reduced_stride[0] == 1;
  T buffer[kChunk];
  for (; begin < end; begin += kChunk) {
    const int64_t n = std::min(kChunk, end - begin);
    if (adjacent) {
      f(base + begin, n);
    } else {
      gather_reduced(base, p, begin, n, buffer);
      f(static_cast<const T*>(buffer), n);
    }
  }
}

/// Steps through the rows (reduced positions) of a columns plan.
template <class T>
class RowWalker {
 public:
  RowWalker(const T* base, const ReducePlan& p, int64_t begin) : base_(base), p_(p) {
    inner_ = p.reduced ? begin % p.reduced_size[0] : 0;
    outer_ = p.reduced ? begin / p.reduced_size[0] : 0;
    seek();
  }
  const T* next() {
    const T* row = row_;
    row_ += stride_;
    if (++inner_ == size_) {
      inner_ = 0;
      ++outer_;
      seek();
    }
    return row;
  }

 private:
  void seek() {
    size_ = p_.reduced ? p_.reduced_size[0] : 1;
    stride_ = p_.reduced ? p_.reduced_stride[0] : 0;
    const int more = p_.reduced > 1 ? p_.reduced - 1 : 0;
    row_ = base_ + offset_at(outer_, more, p_.reduced_size + 1, p_.reduced_stride + 1) +
           inner_ * stride_;
  }
  const T* base_;
  const ReducePlan& p_;
  const T* row_;
  int64_t inner_, outer_, size_, stride_;
};

}  // namespace tarn::cpu
