// index_add.cu - writing and adding rows by index, the same bits on every run.
//
// The indices are sorted, equal ones in the order of k (radix_sort.h), so that a segment of the
// order belongs to one row of out, whose sum is made in that order (segment_sums.cuh), by a thread
// per unit of the row: no atomics. Threads run along the row, 16 bytes each where the alignment
// allows. Bytes per element of src: it is read once; of out: read and written once per distinct
// index. A gradient of an embedding (V 50257, n 8192, I 768, f32) moves 75 MB.
#include <algorithm>

#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/index.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/places.cuh"
#include "tarn/cuda/segment_sums.cuh"

namespace tarn::cuda {
namespace {

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

/// Units of 16 bytes or an element, in [O, entries, inner].
struct Units {
  int64_t count;
  Splitter by_inner, by_entries;
  Units(int64_t outer, int64_t entries, int64_t inner)
      : count(outer * entries * inner), by_inner(inner, count), by_entries(entries, count) {}
};

/// Where units of rows are: out [O, size, inner], src rows of one o `src_rows` apart.
struct Rows {
  const int64_t* index;
  const uint32_t* order;
  int64_t n, size, src_rows;
  Units units;  ///< entries: places in the order
};

// The unit of thread `at`: entry p, row o, column i.
struct Unit {
  int64_t p, o, i;
  __device__ Unit(const Units& units, int64_t at) {
    o = units.by_entries.split(units.by_inner.split(at, &i), &p);
  }
};

// Of each segment the last is written.
template <class U>
__global__ void __launch_bounds__(kIndexThreads) write_rows(U* out, const U* src, Rows rows) {
  const auto inner = static_cast<int64_t>(rows.units.by_inner.divisor);
  for (int64_t at = grid_index(); at < rows.units.count; at += grid_step()) {
    const Unit unit(rows.units, at);
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

// parts [O, cuts, inner].
template <class T, int N>
__global__ void __launch_bounds__(kIndexThreads)
    add_parts(const Vec<T, N>* src, T alpha, SegmentCuts cuts, int64_t src_rows, Units units,
              Vec<T, N>* parts) {
  const auto inner = static_cast<int64_t>(units.by_inner.divisor);
  for (int64_t at = grid_index(); at < units.count; at += grid_step()) {
    const Unit unit(units, at);
    const Vec<T, N>* const column = src + unit.o * src_rows * inner + unit.i;
    Vec<T, N> sum;
#pragma unroll
    for (int j = 0; j < N; ++j) sum.v[j] = kNothing<T>;
    add_part_of(
        cuts, unit.p, unit.o == 0 && unit.i == 0,
        [&](uint32_t k) { return column[int64_t{k} * inner]; },
        [&](const Vec<T, N>& v) { add_unit(sum, alpha, v); });
    parts[at] = sum;
  }
}

// The first of each segment adds the whole.
template <class T, int N>
__global__ void __launch_bounds__(kIndexThreads)
    add_rows(Vec<T, N>* out, const Vec<T, N>* src, T alpha, SegmentCuts cuts,
             const Vec<T, N>* parts, Rows rows) {
  const auto inner = static_cast<int64_t>(rows.units.by_inner.divisor);
  for (int64_t at = grid_index(); at < rows.units.count; at += grid_step()) {
    const Unit unit(rows.units, at);
    const uint32_t first = rows.order[unit.p];
    const int64_t row = rows.index[first & kPositionMask];
    const bool in_range = static_cast<uint64_t>(row) < static_cast<uint64_t>(rows.size);
    if (!(first & kSegmentStart) || !in_range) continue;
    Vec<T, N>& target = out[(unit.o * rows.size + row) * inner + unit.i];
    const Vec<T, N>* const column = src + unit.o * rows.src_rows * inner + unit.i;
    const Vec<T, N>* const part = parts + unit.o * cuts.count * inner + unit.i;
    Vec<T, N> sum = target;
    add_segment(
        cuts, unit.p, [&](uint32_t k) { return column[int64_t{k} * inner]; },
        [&](const Vec<T, N>& v) { add_unit(sum, alpha, v); },
        [&](uint32_t q) { return part[int64_t{q} * inner]; },
        [&](const Vec<T, N>& v) { add_unit(sum, T(1), v); });
    target = sum;
  }
}

// One call for fewer than 2^31 indices, from k = begin on: act(out, src, rows, order).
template <class U, class Act>
void with_rows(const Tensor& out, const Tensor& index, const Tensor& src, int64_t begin, int64_t n,
               int64_t row_bytes, Stream stream, Act act) {
  const int64_t inner = row_bytes / static_cast<int64_t>(sizeof(U)), size = out.size(1);
  const int64_t* const from = data_as<const int64_t>(index) + begin;
  const SegmentOrder order = size < UINT32_MAX ? order_of<uint32_t>(from, n, size, stream)
                                               : order_of<uint64_t>(from, n, size, stream);
  const Rows rows{from, order.data(), n, size, index.numel(), Units(out.size(0), n, inner)};
  act(data_as<U>(out), data_as<const U>(src) + begin * inner, rows, order);
}

unsigned blocks_of(const Units& units, Stream stream) {
  return blocks_for(units.count, kIndexThreads, stream);
}

template <class U>
void write(const Tensor& out, const Tensor& index, const Tensor& src, int64_t begin, int64_t n,
           int64_t row_bytes, Stream stream) {
  with_rows<U>(out, index, src, begin, n, row_bytes, stream,
               [&](U* to, const U* from, const Rows& rows, const SegmentOrder&) {
                 launch(write_rows<U>, blocks_of(rows.units, stream), kIndexThreads, 0, stream, to,
                        from, rows);
               });
}

template <class T, int N>
void add(const Tensor& out, const Tensor& index, const Tensor& src, double alpha, int64_t begin,
         int64_t n, Stream stream) {
  using U = Vec<T, N>;
  const int64_t row_bytes = out.size(2) * static_cast<int64_t>(sizeof(T));
  with_rows<U>(out, index, src, begin, n, row_bytes, stream,
               [&](U* to, const U* from, const Rows& rows, const SegmentOrder& order) {
                 const SegmentParts segments(order, n, stream);
                 const SegmentCuts& cuts = segments.cuts();
                 const auto inner = static_cast<int64_t>(rows.units.by_inner.divisor);
                 const Units units(out.size(0), cuts.count, inner);
                 const Scratch parts(static_cast<size_t>(units.count) * sizeof(U), stream);
                 launch(add_parts<T, N>, blocks_of(units, stream), kIndexThreads, 0, stream, from,
                        static_cast<T>(alpha), cuts, rows.src_rows, units, parts.as<U>());
                 launch(add_rows<T, N>, blocks_of(rows.units, stream), kIndexThreads, 0, stream, to,
                        from, static_cast<T>(alpha), cuts, parts.as<U>(), rows);
               });
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
        write<U>(out, index, src, begin, n, row_bytes, stream);
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
