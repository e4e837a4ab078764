// columns.cuh - blocks of columns: several threads fold one column, neighbours fold neighbours.
//
// A block of kColumnThreads is cut into `wide` columns times `deep` threads that share one column;
// both are powers of two. Where neighbouring columns are adjacent in memory, `wide` is 32 or more
// and a warp reads whole lines; where a column itself is adjacent, threads lie along it.
#pragma once

#include <algorithm>
#include <bit>

#include "tarn/core/tensor.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {

inline constexpr int kColumnThreads = 256;

/// A dense tensor seen as [outer, n, inner] around a dimension.
struct Extents {
  int64_t outer = 1, n = 1, inner = 1;
  Extents(const Tensor& x, int64_t dim) {
    for (int d = 0; d < x.dim(); ++d) {
      (d < dim ? outer : d > dim ? inner : n) *= x.sizes()[d];
    }
  }
  int64_t columns() const { return outer * inner; }
};

inline int power_of_two_from(int64_t n, int most) {
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(n, 1, most))));
}

/// Columns that a block folds, for columns of n elements. `along`: a column's own elements are the
/// adjacent ones.
inline int columns_per_block(int64_t columns, int64_t n, bool along) {
  const int most_deep = power_of_two_from(n, kColumnThreads);
  if (along) return kColumnThreads / most_deep;
  const int wide = power_of_two_from(columns, 32);
  return kColumnThreads / std::min(most_deep, kColumnThreads / wide);
}

/// This thread's column in its block and its place in the column.
struct ColumnPlace {
  int wide, deep, column, place;

  __device__ __forceinline__ ColumnPlace(int wide_in, bool along)
      : wide(wide_in), deep(kColumnThreads / wide_in) {
    const int thread = static_cast<int>(threadIdx.x);
    column = along ? thread / deep : thread % wide;
    place = along ? thread % deep : thread / wide;
  }
};

/// combine over the threads of each column, as a tree; `shared` holds kColumnThreads elements. All
/// threads of the block call; all get their column's result.
template <class T, class Combine>
__device__ T reduce_column(const T& value, const ColumnPlace& at, T* shared, Combine combine) {
  T* mine = shared + at.place * at.wide + at.column;
  __syncthreads();  // the last result was read
  *mine = value;
  __syncthreads();
  for (int half = at.deep / 2; half > 0; half /= 2) {
    if (at.place < half) *mine = combine(*mine, mine[half * at.wide]);
    __syncthreads();
  }
  return shared[at.column];
}

}  // namespace tarn::cuda
