// index_add.cu - writing and adding rows by index, the same bits on every run.
//
// The indices are sorted, equal ones in the order of k (radix_sort.h), so that a segment of the
// order belongs to one row of out, whose sum one thread per unit of the row makes in that order: no
// atomics. Threads run along the row, 16 bytes each where the alignment allows. Bytes per element
// of src: it is read once; of out: read and written once per distinct index. Up to kAhead rows of a
// long segment are in flight before they are added. A gradient of an embedding (V 50257, n 8192,
// I 768, f32) moves 75 MB.
#include <algorithm>

#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/index.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/places.cuh"
#include "tarn/cuda/radix_sort.h"

namespace tarn::cuda {
namespace {

constexpr int kAhead = 8;

template <class Key>
__global__ void keys_of_index(const int64_t* index, int64_t n, int64_t size, Key* keys) {
  for (int64_t k = grid_index(); k < n; k += grid_step()) {
    const uint64_t v = static_cast<uint64_t>(index[k]), limit = static_cast<uint64_t>(size);
    keys[k] = static_cast<Key>(v < limit ? v : limit);
  }
}

template <class Key>
SegmentOrder order_of(const int64_t* index, int64_t n, int64_t size, Stream stream) {
  const Scratch keys(static_cast<size_t>(n) * sizeof(Key), stream);
  launch(keys_of_index<Key>, blocks_for(n, kIndexThreads, stream), kIndexThreads, 0, stream, index,
         n, size, keys.as<Key>());
  return SegmentOrder(keys.as<Key>(), n, size, stream);
}

/// Where units of rows are: out [O, size, inner], src rows of one o `src_rows` apart.
struct Rows {
  const int64_t* index;
  const uint32_t* order;
  int64_t n, size, src_rows, units;  ///< units: O * n * inner
  Splitter by_inner, by_count;
};

// The unit of thread `at`: place p in the order, row o, column i.
struct Unit {
  int64_t p, o, i;
  __device__ Unit(const Rows& rows, int64_t at) {
    o = rows.by_count.split(rows.by_inner.split(at, &i), &p);
  }
};

// Of each segment the last is written.
template <class U>
__global__ void __launch_bounds__(kIndexThreads) write_rows(U* out, const U* src, Rows rows) {
  const auto inner = static_cast<int64_t>(rows.by_inner.divisor);
  for (int64_t at = grid_index(); at < rows.units; at += grid_step()) {
    const Unit unit(rows, at);
    if (unit.p + 1 < rows.n && !(rows.order[unit.p + 1] & kSegmentStart)) continue;
    const int64_t k = rows.order[unit.p] & kPositionMask, row = rows.index[k];
    if (static_cast<uint64_t>(row) >= static_cast<uint64_t>(rows.size)) continue;
    out[(unit.o * rows.size + row) * inner + unit.i] =
        src[(unit.o * rows.src_rows + k) * inner + unit.i];
  }
}

template <class T, int N>
__device__ __forceinline__ void add_unit(Vec<T, N>& sum, T alpha, const Vec<T, N>& part) {
#pragma unroll
  for (int j = 0; j < N; ++j) sum.v[j] = add_scaled(sum.v[j], alpha, part.v[j]);
}

// The first of each segment adds the whole.
template <class T, int N>
__global__ void __launch_bounds__(kIndexThreads)
    add_rows(Vec<T, N>* out, const Vec<T, N>* src, T alpha, Rows rows) {
  const auto inner = static_cast<int64_t>(rows.by_inner.divisor);
  for (int64_t at = grid_index(); at < rows.units; at += grid_step()) {
    const Unit unit(rows, at);
    const uint32_t first = rows.order[unit.p];
    const int64_t row = rows.index[first & kPositionMask];
    const bool in_range = static_cast<uint64_t>(row) < static_cast<uint64_t>(rows.size);
    if (!(first & kSegmentStart) || !in_range) continue;
    Vec<T, N>& target = out[(unit.o * rows.size + row) * inner + unit.i];
    const Vec<T, N>* const column = src + unit.o * rows.src_rows * inner + unit.i;
    Vec<T, N> sum = target;
    add_unit(sum, alpha, column[(first & kPositionMask) * inner]);
    bool more = true;
    for (int64_t p = unit.p + 1; more; p += kAhead) {
      Vec<T, N> part[kAhead];
      int count = 0;
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const uint32_t next = p + j < rows.n ? rows.order[p + j] : kSegmentStart;
        more = more && !(next & kSegmentStart);
        if (more) {
          part[j] = column[int64_t{next} * inner];
          count = j + 1;
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (j < count) add_unit(sum, alpha, part[j]);
      }
    }
    target = sum;
  }
}

// One call for fewer than 2^31 indices, from k = begin on.
template <class U, class Kernel, class... Alpha>
void run(Kernel kernel, const Tensor& out, const Tensor& index, const Tensor& src, int64_t begin,
         int64_t n, int64_t row_bytes, Stream stream, Alpha... alpha) {
  const int64_t inner = row_bytes / static_cast<int64_t>(sizeof(U)), size = out.size(1);
  const int64_t* const from = data_as<const int64_t>(index) + begin;
  const SegmentOrder order = size < UINT32_MAX ? order_of<uint32_t>(from, n, size, stream)
                                               : order_of<uint64_t>(from, n, size, stream);
  const int64_t units = out.size(0) * n * inner;
  const Rows rows{from,
                  order.data(),
                  n,
                  size,
                  index.numel(),
                  units,
                  Splitter(inner, units),
                  Splitter(n, units)};
  launch(kernel, blocks_for(units, kIndexThreads, stream), kIndexThreads, 0, stream,
         data_as<U>(out), data_as<const U>(src) + begin * inner, alpha..., rows);
}

template <class T, int N>
void add(const Tensor& out, const Tensor& index, const Tensor& src, double alpha, int64_t begin,
         int64_t n, Stream stream) {
  const int64_t row_bytes = out.size(2) * static_cast<int64_t>(sizeof(T));
  run<Vec<T, N>>(add_rows<T, N>, out, index, src, begin, n, row_bytes, stream,
                 static_cast<T>(alpha));
}

}  // namespace

void index_add(ScatterOp op, const Tensor& out, const Tensor& index, const Tensor& src,
               double alpha, Stream stream) {
  const int64_t row_bytes = out.size(2) * item_size(out.dtype());
  const int64_t width = common_width(row_bytes, out.data(), src.data());
  constexpr int64_t kMost = int64_t{1}
                            << 30;  // indices in one call: part after part keeps the order
  for (int64_t begin = 0; begin < index.numel(); begin += kMost) {
    const int64_t n = std::min(kMost, index.numel() - begin);
    if (op == ScatterOp::kWrite) {
      visit_width(width, [&](auto unit) {
        using U = decltype(unit);
        run<U>(write_rows<U>, out, index, src, begin, n, row_bytes, stream);
      });
    } else {
      visit_addable(out.dtype(), [&](auto value) {
        using T = decltype(value);
        if (width == 16) {
          add<T, kVecWidth<T>>(out, index, src, alpha, begin, n, stream);
        } else {
          add<T, 1>(out, index, src, alpha, begin, n, stream);
        }
      });
    }
  }
}

}  // namespace tarn::cuda
