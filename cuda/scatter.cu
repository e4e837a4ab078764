// scatter.cu - writing and adding elements by index, the same bits on every run.
//
// A line is what index holds along dim; its elements meet only each other. Many or short lines: a
// thread walks its line in order. Few long lines: the elements are sorted by the place they go to,
// equal ones in their order, and the sum of a place is made in that order (segment_sums.cuh).
// Bytes per element of the walk: 8 of index, src once, out read (kAdd) and written.
#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/index.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/places.cuh"
#include "tarn/cuda/segment_sums.cuh"

namespace tarn::cuda {
namespace {

/// index as [A, length, B] around dim, and the strided out.
struct Lines {
  const int64_t* index;
  int64_t count, length, size, step;  ///< count = A * B; size, step: of out along dim
  Splitter by_after;                  ///< B
  Splitter by_length;
  Places places;  ///< offsets in out of the lines [A..., B...]

  __device__ __forceinline__ bool outside(int64_t k) const {
    return static_cast<uint64_t>(k) >= static_cast<uint64_t>(size);
  }
  /// The line of an element of index in row-major order.
  __device__ __forceinline__ int64_t line_of(int64_t position) const {
    int64_t b, k;
    const int64_t a = by_length.split(by_after.split(position, &b), &k);
    return a * static_cast<int64_t>(by_after.divisor) + b;
  }
  __device__ __forceinline__ int64_t target_of(int64_t position) const {
    return places.offset(line_of(position)) + index[position] * step;
  }
};

template <class T, bool kAdd>
__device__ __forceinline__ T combined(T old, T src) {
  return kAdd ? add_scaled(old, T(1), src) : src;
}

template <class T, bool kAdd>
__global__ void __launch_bounds__(kIndexThreads) scatter_lines(T* out, const T* src, Lines lines) {
  const auto after = static_cast<int64_t>(lines.by_after.divisor);
  for (int64_t line = grid_index(); line < lines.count; line += grid_step()) {
    int64_t b;
    const int64_t a = lines.by_after.split(line, &b);
    T* const target = out + lines.places.offset(line);
    int64_t at = a * lines.length * after + b;
#pragma unroll 1
    for (int64_t k = 0; k < lines.length; ++k, at += after) {
      const int64_t to = lines.index[at];
      if (lines.outside(to)) continue;
      T& cell = target[to * lines.step];
      cell = combined<T, kAdd>(cell, src[at]);
    }
  }
}

template <class Key>
__global__ void keys_of_elements(Lines lines, int64_t n, Key* keys) {
  for (int64_t p = grid_index(); p < n; p += grid_step()) {
    const int64_t k = lines.index[p];
    keys[p] = static_cast<Key>(lines.outside(k) ? lines.count * lines.size
                                                : lines.line_of(p) * lines.size + k);
  }
}

// One thread per segment: its last element is written.
template <class T>
__global__ void __launch_bounds__(kIndexThreads)
    write_segments(T* out, const T* src, const uint32_t* order, int64_t n, Lines lines) {
  for (int64_t p = grid_index(); p < n; p += grid_step()) {
    if (p + 1 < n && !(order[p + 1] & kSegmentStart)) continue;
    const uint32_t position = order[p] & kPositionMask;
    if (lines.outside(lines.index[position])) continue;
    out[lines.target_of(position)] = src[position];
  }
}

template <class T>
__global__ void __launch_bounds__(kIndexThreads)
    add_parts(const T* src, SegmentCuts cuts, T* parts) {
  const auto load = [src](uint32_t position) { return src[position]; };
  for (int64_t q = grid_index(); q < cuts.count; q += grid_step()) {
    T sum = kNothing<T>;
    add_part_of(cuts, q, true, load, [&](T v) { sum = combined<T, true>(sum, v); });
    parts[q] = sum;
  }
}

// One thread per segment: all of it is added.
template <class T>
__global__ void __launch_bounds__(kIndexThreads)
    add_segments(T* out, const T* src, SegmentCuts cuts, const T* parts, Lines lines) {
  const auto load = [src](uint32_t position) { return src[position]; };
  const auto load_part = [parts](uint32_t q) { return parts[q]; };
  for (int64_t p = grid_index(); p < cuts.n; p += grid_step()) {
    const uint32_t first = cuts.order[p], position = first & kPositionMask;
    if (!(first & kSegmentStart) || lines.outside(lines.index[position])) continue;
    T& cell = out[lines.target_of(position)];
    T sum = cell;
    const auto add = [&](T v) { sum = combined<T, true>(sum, v); };
    add_segment(cuts, p, load, add, load_part, add);
    cell = sum;
  }
}

template <class Key>
SegmentOrder order_of(const Lines& lines, int64_t n, Stream stream) {
  const Scratch keys(static_cast<size_t>(n) * sizeof(Key), stream);
  launch(keys_of_elements<Key>, blocks_for(n, kIndexThreads, stream), kIndexThreads, 0, stream,
         lines, n, keys.as<Key>());
  return SegmentOrder(keys.as<Key>(), n, lines.count * lines.size, stream);
}

Lines make_lines(const Tensor& out, int64_t dim, const Tensor& index) {
  Shape sizes, strides;
  int64_t after = 1;
  for (int d = 0; d < index.dim(); ++d) {
    if (d == dim) continue;
    sizes.push_back(index.size(d));
    strides.push_back(out.stride(d));
    if (d > dim) after *= index.size(d);
  }
  const int64_t length = index.size(dim), n = index.numel();
  return {.index = data_as<const int64_t>(index),
          .count = n / length,
          .length = length,
          .size = out.size(dim),
          .step = out.stride(dim),
          .by_after = Splitter(after, n),
          .by_length = Splitter(length, n),
          .places = Places(sizes, strides)};
}

template <class T, bool kAdd>
void scatter_typed(const Tensor& out, const Lines& lines, const Tensor& src, Stream stream) {
  constexpr int64_t kShortLine = 64, kManyLines = 1 << 16;
  constexpr int64_t kMostSorted = int64_t{1} << 31;
  constexpr unsigned kPartThreads = 64;  // few parts: over many multiprocessors
  const int64_t n = lines.count * lines.length;
  if (lines.length <= kShortLine || lines.count >= kManyLines || n >= kMostSorted) {
    launch(scatter_lines<T, kAdd>, blocks_for(lines.count, kIndexThreads, stream), kIndexThreads, 0,
           stream, data_as<T>(out), data_as<const T>(src), lines);
    return;
  }
  const SegmentOrder order = lines.count * lines.size < UINT32_MAX
                                 ? order_of<uint32_t>(lines, n, stream)
                                 : order_of<uint64_t>(lines, n, stream);
  T* const to = data_as<T>(out);
  const T* const from = data_as<const T>(src);
  const unsigned blocks = blocks_for(n, kIndexThreads, stream);
  if constexpr (kAdd) {
    const SegmentParts segments(order, n, stream);
    const SegmentCuts& cuts = segments.cuts();
    const Scratch parts(static_cast<size_t>(cuts.count) * sizeof(T), stream);
    launch(add_parts<T>, blocks_for(cuts.count, kPartThreads, stream), kPartThreads, 0, stream,
           from, cuts, parts.as<T>());
    launch(add_segments<T>, blocks, kIndexThreads, 0, stream, to, from, cuts, parts.as<T>(), lines);
  } else {
    launch(write_segments<T>, blocks, kIndexThreads, 0, stream, to, from, order.data(), n, lines);
  }
}

}  // namespace

void scatter(ScatterOp op, const Tensor& out, int64_t dim, const Tensor& index, const Tensor& src,
             Stream stream) {
  const Lines lines = make_lines(out, dim, index);
  if (op == ScatterOp::kWrite) {
    visit_element(out.dtype(),
                  [&](auto u) { scatter_typed<decltype(u), false>(out, lines, src, stream); });
  } else {
    visit_addable(out.dtype(),
                  [&](auto v) { scatter_typed<decltype(v), true>(out, lines, src, stream); });
  }
}

}  // namespace tarn::cuda
