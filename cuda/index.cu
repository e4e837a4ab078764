// index.cu - gathering by index tensors, triangles.
//
// Moves work on bytes, whatever the dtype: rows in the widest unit that divides them. index_select
// reads and writes each byte of the result once (16 bytes a thread), gather one element and its
// 8-byte index. An index out of range (its error is on the way, index_check.h) gives 0.
#include <algorithm>

#include "tarn/cuda/grid.cuh"
#include "tarn/cuda/index.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/places.cuh"
#include "tarn/cuda/table.h"

namespace tarn::cuda {
namespace {

__device__ __forceinline__ bool outside(int64_t index, int64_t size) {
  return static_cast<uint64_t>(index) >= static_cast<uint64_t>(size);
}

__global__ void wrap_values(const int64_t* index, int64_t n, int64_t size, int64_t* out) {
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    const int64_t v = index[i];
    out[i] = v < 0 ? v + size : v;
  }
}

void wrap_negative(const Tensor& index, int64_t size, const Tensor& out, Stream stream) {
  const int64_t n = index.numel();
  launch(wrap_values, blocks_for(n, kIndexThreads, stream), kIndexThreads, 0, stream,
         data_as<int64_t>(index), n, size, data_as<int64_t>(out));
}

// Row r = o * count + k of out is row o * size + index[k] of x; both in units of U.
template <class U>
__global__ void __launch_bounds__(kIndexThreads)
    copy_rows(const U* x, const int64_t* index, U* out, int64_t units, int64_t size,
              Splitter by_inner, Splitter by_count) {
  const auto inner = static_cast<int64_t>(by_inner.divisor);
  for (int64_t at = grid_index(); at < units; at += grid_step()) {
    int64_t i, k;
    const int64_t row = by_inner.split(at, &i);
    const int64_t o = by_count.split(row, &k);
    const int64_t from = index[k];
    out[at] = outside(from, size) ? U{} : x[(o * size + from) * inner + i];
  }
}

void index_select(const Tensor& x, const Tensor& index, const Tensor& out, Stream stream) {
  const int64_t row_bytes = x.size(2) * item_size(x.dtype());
  visit_width(common_width(row_bytes, x.data(), out.data()), [&](auto unit) {
    using U = decltype(unit);
    const int64_t inner = row_bytes / static_cast<int64_t>(sizeof(U));
    const int64_t units = out.size(0) * out.size(1) * inner;
    launch(copy_rows<U>, blocks_for(units, kIndexThreads, stream), kIndexThreads, 0, stream,
           data_as<const U>(x), data_as<const int64_t>(index), data_as<U>(out), units, x.size(1),
           Splitter(inner, units), Splitter(index.numel(), units));
  });
}

template <class U>
__global__ void __launch_bounds__(kIndexThreads)
    gather_elements(const U* x, const int64_t* index, U* out, int64_t n, int64_t size, int64_t step,
                    Places lines) {
  for (int64_t i = grid_index(); i < n; i += grid_step()) {
    const int64_t k = index[i];
    out[i] = outside(k, size) ? U{} : x[lines.offset(i) + k * step];
  }
}

void gather(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& out, Stream stream) {
  Shape strides = x.strides();
  strides[static_cast<int>(dim)] = 0;
  const int64_t n = index.numel();
  visit_element(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    launch(gather_elements<U>, blocks_for(n, kIndexThreads, stream), kIndexThreads, 0, stream,
           data_as<const U>(x), data_as<const int64_t>(index), data_as<U>(out), n, x.size(dim),
           x.stride(dim), Places(index.sizes(), strides));
  });
}

// Blocks along y take rows, threads along x columns.
template <class U>
__global__ void __launch_bounds__(kIndexThreads)
    copy_triangle(bool upper, const U* x, int64_t all_rows, int64_t rows, int64_t cols,
                  int64_t diagonal, U* out) {
  for (int64_t r = blockIdx.y; r < all_rows; r += gridDim.y) {
    const int64_t split = r % rows + diagonal;
    for (int64_t c = grid_index(); c < cols; c += grid_step()) {
      const bool keep = upper ? c >= split : c <= split;
      out[r * cols + c] = keep ? x[r * cols + c] : U{};
    }
  }
}

void triangle(bool upper, const Tensor& x, int64_t diagonal, const Tensor& out, Stream stream) {
  const int64_t rows = x.size(1), cols = x.size(2), all_rows = x.size(0) * rows;
  const dim3 blocks(blocks_for(cols, kIndexThreads, stream),
                    std::min(65535u, blocks_for(all_rows, 1, stream)));
  visit_element(x.dtype(), [&](auto unit) {
    using U = decltype(unit);
    launch(copy_triangle<U>, blocks, kIndexThreads, 0, stream, upper, data_as<const U>(x), all_rows,
           rows, cols, diagonal, data_as<U>(out));
  });
}

}  // namespace

void add_index_kernels(KernelTable& table) {
  table.index.find_out_of_range = find_out_of_range;
  table.index.wrap_negative = wrap_negative;
  table.index.index_select = index_select;
  table.index.index_add = index_add;
  table.index.gather = gather;
  table.index.scatter = scatter;
  table.index.count_nonzero = count_nonzero;
  table.index.nonzero = nonzero;
  table.index.triangle = triangle;
}

}  // namespace tarn::cuda
