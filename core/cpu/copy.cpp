// copy.cpp - copies and casts between any two layouts and dtypes.
//
// Dense copies of one dtype are memcpy. A copy that reads along one dimension and writes along
// another (NCHW to channels_last, a transpose) goes in square tiles, so that every cache line of
// either side is used whole. All else goes row by row.
#include <cstring>
#include <type_traits>

#include "tarn/core/cast.h"
#include "tarn/core/cpu/elementwise_walk.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kCopyBlock = 4096;
constexpr int64_t kTile = 16;

template <class From, class To>
void cast_elements(char* to_bytes, int64_t to_stride, const char* from_bytes, int64_t from_stride,
                   int64_t n) {
  To* const to = reinterpret_cast<To*>(to_bytes);
  const From* const from = reinterpret_cast<const From*>(from_bytes);
  if (to_stride == 1 && from_stride == 1) {
    if constexpr (std::is_same_v<From, To>) {
      std::memmove(to, from, n * sizeof(To));
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) to[i] = cast_value<To>(from[i]);
    }
  } else if (from_stride == 0) {
    const To value = cast_value<To>(from[0]);
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = value;
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = cast_value<To>(from[i * from_stride]);
  }
}

/// Same-dtype copies need only the size: f32, i32 and the like share their code.
template <class T>
using BitsOf =
    std::conditional_t<sizeof(T) == 1, uint8_t,
                       std::conditional_t<sizeof(T) == 2, uint16_t,
                                          std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;

struct CastTable {
  CastRow rows[kNumDTypes][kNumDTypes];
};

template <class From, class To>
constexpr CastRow cast_of() {
  if constexpr (std::is_same_v<From, To>) {
    return cast_elements<BitsOf<To>, BitsOf<To>>;
  } else {
    return cast_elements<From, To>;
  }
}

template <class From, class... To>
constexpr void set_casts_from(CastTable& table) {
  ((table.rows[static_cast<int>(dtype_of<From>)][static_cast<int>(dtype_of<To>)] =
        cast_of<From, To>()),
   ...);
}

template <class... T>
constexpr CastTable make_casts() {
  CastTable table{};
  (set_casts_from<T, T...>(table), ...);
  return table;
}

constexpr CastTable kCasts =
    make_casts<float, double, half, bfloat16, int64_t, int32_t, uint8_t, bool>();

/// The dimension that `from` walks with unit stride while `to` has it in dimension 0; 0 if none.
int transposed_dim(const ElementwisePlan& plan) {
  if (plan.dtype[0] != plan.dtype[1] || plan.strides[0][0] != 1 || plan.sizes[0] < 4) return 0;
  if (plan.strides[1][0] <= 1) return 0;
  for (int d = 1; d < plan.ndim; ++d) {
    if (plan.strides[1][d] == 1 && plan.sizes[d] >= 4) return d;
  }
  return 0;
}

/// to[i + k * to_stride] = from[i * from_stride + k] for i < rows, k < columns.
template <class T>
void transpose(char* to_bytes, int64_t to_stride, const char* from_bytes, int64_t from_stride,
               int64_t rows, int64_t columns) {
  T* const to = reinterpret_cast<T*>(to_bytes);
  const T* const from = reinterpret_cast<const T*>(from_bytes);
  for (int64_t i0 = 0; i0 < rows; i0 += kTile) {
    const int64_t i1 = std::min(rows, i0 + kTile);
    for (int64_t k = 0; k < columns; ++k) {
#pragma GCC ivdep
      for (int64_t i = i0; i < i1; ++i) to[i + k * to_stride] = from[i * from_stride + k];
    }
  }
}

void copy_transposed(const ElementwisePlan& plan, int dim) {
  // Dimension `dim` is cut into tiles that count as one dimension of the walk, the first one.
  ElementwisePlan tiles = plan;
  const int64_t columns = plan.sizes[dim], size = item_size(plan.dtype[0]);
  tiles.sizes[0] = (columns + kTile - 1) / kTile;
  for (int o = 0; o < 2; ++o) tiles.strides[o][0] = plan.strides[o][dim] * kTile;
  for (int d = dim; d + 1 < plan.ndim; ++d) {
    tiles.sizes[d] = plan.sizes[d + 1];
    for (int o = 0; o < 2; ++o) tiles.strides[o][d] = plan.strides[o][d + 1];
  }
  --tiles.ndim;
  tiles.numel = tiles.sizes[0];
  for (int d = 1; d < tiles.ndim; ++d) tiles.numel *= tiles.sizes[d];

  const auto run = size == 1   ? transpose<uint8_t>
                   : size == 2 ? transpose<uint16_t>
                   : size == 4 ? transpose<uint32_t>
                               : transpose<uint64_t>;
  const auto offset = [&](int operand, int64_t tile) {
    int64_t at = 0;
    for (int d = 0; d < tiles.ndim; ++d) {
      at += tile % tiles.sizes[d] * tiles.strides[operand][d];
      tile /= tiles.sizes[d];
    }
    return at * size;
  };
  const int64_t grain = std::max<int64_t>(1, kGrain / (plan.sizes[0] * kTile));
  parallel_for(tiles.numel, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t left = columns - t % tiles.sizes[0] * kTile;
      run(static_cast<char*>(plan.data[0]) + offset(0, t), plan.strides[0][dim],
          static_cast<const char*>(plan.data[1]) + offset(1, t), plan.strides[1][0], plan.sizes[0],
          std::min(left, kTile));
    }
  });
}

}  // namespace

CastRow cast_row(DType from, DType to) {
  return kCasts.rows[static_cast<int>(from)][static_cast<int>(to)];
}

void copy_kernel(const ElementwisePlan& plan, Stream) {
  if (plan.numel == 0) return;
  const CastRow row = cast_row(plan.dtype[1], plan.dtype[0]);
  char* const to = static_cast<char*>(plan.data[0]);
  const char* const from = static_cast<const char*>(plan.data[1]);
  if (plan.dense) {
    const int64_t to_size = item_size(plan.dtype[0]), from_size = item_size(plan.dtype[1]);
    for_dense_parts(plan.numel, [&](int64_t begin, int64_t end) {
      row(to + begin * to_size, 1, from + begin * from_size, 1, end - begin);
    });
    return;
  }
  if (const int dim = transposed_dim(plan)) {
    copy_transposed(plan, dim);
    return;
  }
  const int64_t to_stride = plan.strides[0][0], from_stride = plan.strides[1][0];
  for_each_block(plan, kCopyBlock,
                 [&](char* const* p, int64_t n) { row(p[0], to_stride, p[1], from_stride, n); });
}

}  // namespace tarn::cpu
