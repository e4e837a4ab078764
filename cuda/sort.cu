// sort.cu - the first k elements in sorted order along a dimension; k = size is a sort. Stable.
//
// Slices become rows of entries (sort_entries.cuh). A tile of kTile entries is sorted in shared
// memory by Batcher's bitonic network (AFIPS 1968); short slices share a tile. Longer slices are
// cut into tiles: for small k each tile keeps its first k, and what is left is cut again; for large
// k sorted runs are merged in pairs, each block finding its part of a pair by the diagonals of the
// merge path (Green, McColl, Bader 2012). Bytes per element: read size(T), write 8 (16 for 8-byte
// types), and for each doubling beyond a tile one more read and write of that; k of each slice are
// gathered at the end.
#include "tarn/core/dtype.h"
#include "tarn/cuda/columns.cuh"
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/reduce.h"
#include "tarn/cuda/scratch.h"
#include "tarn/cuda/sort_entries.cuh"

namespace tarn::cuda {
namespace {

constexpr int kSortThreads = 256;
template <class Entry>
constexpr int kTile = 16384 / sizeof(Entry);  // 16 KiB of shared memory

/// Slices of x along the dimension, `first` the first of this launch.
template <class T>
struct SliceSource {
  using Entry = EntryOf<T>;
  const T* x;
  int64_t first, n, inner;
  bool largest;

  __device__ Entry operator()(int64_t slice, int64_t i) const {
    const int64_t s = first + slice, outer = s / inner;
    const auto key = sort_key(x[(outer * n + i) * inner + (s - outer * inner)]);
    return make_entry(largest ? static_cast<decltype(key)>(~key) : key, i);
  }
};

/// Rows of entries.
template <class E>
struct EntrySource {
  using Entry = E;
  const Entry* entries;
  int64_t n;

  __device__ Entry operator()(int64_t slice, int64_t i) const { return entries[slice * n + i]; }
};

/// How slices of n entries lie in tiles. n <= kTile: `span` = a power of two from n, several slices
/// to a tile; else a slice takes `per_slice` tiles. Each tile keeps its first `keep`.
struct TileJob {
  int64_t slices, n;
  int span;
  int64_t per_slice;
  int64_t keep;
  int64_t row;  ///< entries per slice in the result
  bool strided;
};

/// Sorts every tile, or every span of it, and writes what is kept, in rows.
template <class Source>
__global__ void __launch_bounds__(kSortThreads, 4)
    sort_tiles(Source source, typename Source::Entry* out, TileJob job) {
  using Entry = typename Source::Entry;
  constexpr int kEntries = kTile<Entry>;
  __shared__ Entry tile[kEntries];
  const int in_tile = kEntries / job.span;  // slices
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tiles = (job.slices + in_tile - 1) / in_tile * job.per_slice;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t first = t / job.per_slice * in_tile;
    const int64_t part = t % job.per_slice, begin = part * job.span;
    for (int e = thread; e < kEntries; e += kSortThreads) {
      // Neighbouring threads read neighbours: along the slice, or across slices.
      const int slice = job.strided ? e % in_tile : e / job.span;
      const int i = job.strided ? e / in_tile : e % job.span;
      const bool inside = first + slice < job.slices && begin + i < job.n;
      tile[slice * job.span + i] = inside ? source(first + slice, begin + i) : last_entry<Entry>();
    }
    __syncthreads();
    for (int size = 2; size <= job.span; size *= 2) {
      for (int stride = size / 2; stride > 0; stride /= 2) {
        for (int c = thread; c < kEntries / 2; c += kSortThreads) {
          const int a = 2 * c - (c & (stride - 1)), b = a + stride;
          const bool rising = size == job.span || (a & size) == 0;
          const Entry low = tile[a], high = tile[b];
          if ((high < low) == rising) {
            tile[a] = high;
            tile[b] = low;
          }
        }
        __syncthreads();
      }
    }
    const int64_t keep = min(job.keep, job.n - begin);
    for (int64_t e = thread; e < keep * in_tile; e += kSortThreads) {
      const int64_t slice = e / keep, i = e - slice * keep;
      if (first + slice < job.slices) {
        out[(first + slice) * job.row + part * job.keep + i] = tile[slice * job.span + i];
      }
    }
    __syncthreads();
  }
}

/// Entries that `a` (of size n_a) gives to the first `diagonal` of its merge with `b`.
template <class Entry>
__device__ int64_t merge_path(const Entry* a, int64_t n_a, const Entry* b, int64_t n_b,
                              int64_t diagonal) {
  int64_t low = max(int64_t{0}, diagonal - n_b), high = min(diagonal, n_a);
  while (low < high) {
    const int64_t mid = (low + high) / 2;
    if (a[mid] < b[diagonal - 1 - mid]) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return low;
}

/// Merges runs of length `run` in pairs, in each row of n entries; a tile of the result per block.
template <class Entry>
__global__ void __launch_bounds__(kSortThreads, 4)
    merge_runs(const Entry* in, Entry* out, int64_t rows, int64_t n, int64_t run) {
  constexpr int kEntries = kTile<Entry>, kEach = kEntries / kSortThreads;
  __shared__ Entry tile[kEntries];
  __shared__ int64_t splits[2];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t per_row = (n + kEntries - 1) / kEntries;
  for (int64_t t = blockIdx.x; t < rows * per_row; t += gridDim.x) {
    const int64_t row = t / per_row, begin = (t - row * per_row) * kEntries;
    const int64_t pair = begin / (2 * run) * (2 * run);
    const int64_t n_a = min(run, n - pair), n_b = min(run, n - pair - n_a);
    const Entry* a = in + row * n + pair;
    const Entry* b = a + n_a;
    const int64_t from = begin - pair, to = min(from + kEntries, n_a + n_b);
    if (thread < 2) splits[thread] = merge_path(a, n_a, b, n_b, thread == 0 ? from : to);
    __syncthreads();
    const int64_t a_from = splits[0], b_from = from - a_from;
    const int count_a = static_cast<int>(splits[1] - a_from);
    const int count = static_cast<int>(to - from);
    for (int i = thread; i < count; i += kSortThreads) {
      tile[i] = i < count_a ? a[a_from + i] : b[b_from + i - count_a];
    }
    __syncthreads();
    const int mine = min(thread * kEach, count);
    const Entry* tile_b = tile + count_a;
    const int count_b = count - count_a;
    int i = static_cast<int>(
        merge_path(tile, int64_t{count_a}, tile_b, int64_t{count_b}, int64_t{mine}));
    int j = mine - i;
    for (int e = mine; e < min(mine + kEach, count); ++e) {
      const bool take_a = j == count_b || (i < count_a && tile[i] < tile_b[j]);
      out[row * n + begin + e] = take_a ? tile[i++] : tile_b[j++];
    }  // the next tile comes after the barrier behind its splits, which nobody reads by now
  }
}

/// Writes the first k of every row: the values, by position, and the positions. U: an unsigned
/// integer of the elements' size.
template <class U, class Entry>
__global__ void write_selected(const Entry* entries, int64_t row, const U* x, int64_t first,
                               int64_t slices, int64_t n, int64_t inner, int64_t k, U* values,
                               int64_t* index) {
  for (int64_t e = grid_index(); e < slices * k; e += grid_step()) {
    // Along the result, whose last dimension is inner.
    const int64_t within = inner == 1 ? e / k : e % slices;
    const int64_t i = inner == 1 ? e - within * k : e / slices;
    const int64_t s = first + within, outer = s / inner, column = s - outer * inner;
    const int64_t position = position_of(entries[within * row + i]);
    const int64_t at = (outer * k + i) * inner + column;
    values[at] = x[(outer * n + position) * inner + column];
    index[at] = position;
  }
}

template <class Source>
void launch_tiles(const Source& source, typename Source::Entry* out, const TileJob& job,
                  Stream stream) {
  const int64_t tiles =
      ceil_div(job.slices, kTile<typename Source::Entry> / job.span) * job.per_slice;
  launch(sort_tiles<Source>, blocks_for(tiles, 1, stream), kSortThreads, 0, stream, source, out,
         job);
}

/// Plans a pass over rows of n entries of which the first k are wanted.
template <class Entry>
TileJob plan_tiles(int64_t slices, int64_t n, int64_t k, bool strided) {
  const int span = power_of_two_from(n, kTile<Entry>);
  const int64_t tiles = ceil_div(n, span);
  // Half a tile or more would hardly shrink: all is kept, to be merged.
  const int64_t keep = tiles == 1 ? std::min(k, n) : k <= span / 2 ? k : span;
  const int64_t row = (tiles - 1) * keep + std::min(keep, n - (tiles - 1) * span);
  return {slices, n, span, tiles, keep, row, strided};
}

/// Sorts slices [first, first + slices) of x and writes their first k.
template <class T, class U>
void sort_slices(const SliceSource<T>& source, int64_t slices, int64_t k, const U* x, U* values,
                 int64_t* index, Stream stream) {
  using Entry = EntryOf<T>;
  TileJob job = plan_tiles<Entry>(slices, source.n, k, source.inner > 1);
  const size_t bytes = static_cast<size_t>(slices * job.row) * sizeof(Entry);
  const Scratch buffer_a(bytes, stream), buffer_b(job.per_slice > 1 ? bytes : 0, stream);
  Entry *at = buffer_a.as<Entry>(), *other = buffer_b.as<Entry>();
  launch_tiles(source, at, job, stream);
  while (job.per_slice > 1 && job.keep < job.span) {
    const int64_t n = job.row;
    job = plan_tiles<Entry>(slices, n, k, false);
    launch_tiles(EntrySource<Entry>{at, n}, other, job, stream);
    std::swap(at, other);
  }
  if (job.per_slice > 1) {
    for (int64_t run = job.span; run < job.n; run *= 2) {
      launch(merge_runs<Entry>, blocks_for(slices * ceil_div(job.n, kTile<Entry>), 1, stream),
             kSortThreads, 0, stream, at, other, slices, job.n, run);
      std::swap(at, other);
    }
  }
  launch(write_selected<U, Entry>, blocks_for(slices * k, kSortThreads, stream), kSortThreads, 0,
         stream, at, job.row, x, source.first, slices, source.n, source.inner, k, values, index);
}

template <class T>
void topk_typed(const Tensor& x, int64_t k, const Extents& e, bool largest, const Tensor& values,
                const Tensor& index, Stream stream) {
  using U =
      std::conditional_t<sizeof(T) == 8, uint64_t,
                         std::conditional_t<sizeof(T) == 4, uint32_t,
                                            std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;
  constexpr int64_t kAtOnce = int64_t{1} << 26;  // entries in flight, so that workspace is bounded
  const int64_t step = std::max<int64_t>(1, kAtOnce / e.n);
  for (int64_t first = 0; first < e.columns(); first += step) {
    const SliceSource<T> source{static_cast<const T*>(x.data()), first, e.n, e.inner, largest};
    sort_slices(source, std::min(step, e.columns() - first), k, static_cast<const U*>(x.data()),
                static_cast<U*>(values.data()), index.data<int64_t>(), stream);
  }
}

}  // namespace

void topk(const Tensor& x, int64_t k, int64_t dim, bool largest, const Tensor& values,
          const Tensor& index, Stream stream) {
  const Extents e(x, dim);
  constexpr int64_t kMost = int64_t{1} << 32;  // positions are 32 bits of an entry
  TARN_CHECK_AS(UnsupportedError, e.n < kMost,
                "topk: on cuda the dimension must be shorter than 2^32; got x=", x.describe(),
                ", dim=", dim);
  visit_dtype(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
    topk_typed<Element>(x, k, e, largest, values, index, stream);
  });
}

}  // namespace tarn::cuda
