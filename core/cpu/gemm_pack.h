// gemm_pack.h - blocks of A and B as the microkernel reads them best, in the type that it computes
// in.
//
// Halves are widened on the way: exactly, and at no cost beside the copy. Dense runs across the
// wanted order are turned sixteen by sixteen in registers.
#pragma once

#include <algorithm>
#include <type_traits>

#include "tarn/core/cpu/half_lanes.h"
#include "tarn/core/cpu/micro_gemm.h"
#include "tarn/core/half.h"

namespace tarn::cpu {

/// Types that load16 reads.
template <typename In>
constexpr bool kHasLanes =
    std::is_same_v<In, float> || std::is_same_v<In, bfloat16> || std::is_same_v<In, half>;

/// Room that pack_a needs for so many rows and steps of k.
inline int64_t packed_a_size(int64_t rows, int64_t kc) {
  const int64_t values = row_blocks(rows) * kMaxRows * kc;
  return (values + 2 * kLanes - 1) / kLanes * kLanes;  // a spill at the end; whole vectors
}

/// Asks for the vector at p, soon to be packed, while another is: blocks lie across memory pages,
/// so the hardware does not foresee them.
inline void prefetch_soon(const void* p) {
  __builtin_prefetch(p, 0, 2);
}

/// A[rows, kc] by register blocks: within a block, kMaxRows values per step of k. Where a block has
/// fewer rows, the rest is unspecified.
template <typename T, typename In>
void pack_a(const In* from, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t kc,
            T* to) {
  const int64_t blocks = row_blocks(rows);
  if constexpr (kHasLanes<In> && std::is_same_v<T, float> && kMaxRows <= kLanes) {
    if (row_stride == 1) {
      // Some steps of k at a time, along the rows: few streams of memory, in order.
      constexpr int64_t kSteps = 16;
      for (int64_t k0 = 0; k0 < kc; k0 += kSteps) {
        const int64_t k1 = std::min(kc, k0 + kSteps);
        for (int64_t i = 0; i < blocks; ++i) {
          const auto [first, count] = row_block(rows, i);
          const In* block = from + first;
          T* const out = to + i * kMaxRows * kc;
          if (first + kLanes <= rows) {
            // Sixteen values are readable.
            for (int64_t k = k0; k < k1; ++k) {
              store16_partial(out + k * kMaxRows, load16(block + k * col_stride), kMaxRows);
            }
          } else {
            for (int64_t k = k0; k < k1; ++k) {
              store16_partial(out + k * kMaxRows, load16_partial(block + k * col_stride, count),
                              kMaxRows);
            }
          }
        }
      }
      return;
    }
  }
  for (int64_t i = 0; i < blocks; ++i, to += kMaxRows * kc) {
    const auto [first, count] = row_block(rows, i);
    const In* block = from + first * row_stride;
    int64_t done = 0;
    if constexpr (kHasLanes<In> && std::is_same_v<T, float> && kMaxRows <= kLanes) {
      if (col_stride == 1) {  // turned: a vector of k per row becomes a vector of rows per k
        const In* row[kMaxRows];
        for (int64_t r = 0; r < kMaxRows; ++r) row[r] = block + std::min(r, count - 1) * row_stride;
        const int64_t next = i + 1 < blocks ? count * row_stride : 0;
        for (; done + kLanes <= kc; done += kLanes) {
          v16 turned[kLanes];
#pragma GCC unroll 16
          for (int64_t r = 0; r < kLanes; ++r) {
            turned[r] = r < kMaxRows ? load16(row[r] + done) : v16{};
          }
#pragma GCC unroll 16
          for (int64_t r = 0; r < kMaxRows; ++r) prefetch_soon(row[r] + next + done);
          transpose16(turned);
          // Each store spills into the next step, which is written after it.
          for (int64_t k = 0; k < kLanes; ++k) store16(to + (done + k) * kMaxRows, turned[k]);
        }
      }
    }
    for (; done < kc; ++done) {
      for (int64_t r = 0; r < count; ++r) {
        to[done * kMaxRows + r] = T(block[r * row_stride + done * col_stride]);
      }
    }
  }
}

/// B[kc, cols] to a dense panel of kPanelOf<T> columns. Vectors wholly beyond cols may be left
/// alone: the microkernel does not read them. Other columns beyond cols are of no account.
template <typename T, typename In>
void pack_b(const In* from, int64_t row_stride, int64_t col_stride, int64_t kc, int64_t cols,
            T* to) {
  constexpr int64_t kCols = kPanelOf<T>;
  int64_t done = 0;
  if constexpr (kHasLanes<In> && std::is_same_v<T, float>) {
    if (col_stride == 1 && cols == kCols) {
      for (; done < kc; ++done) {
        const In* const row = from + done * row_stride;
#pragma GCC unroll 2
        for (int64_t j = 0; j < kCols; j += kLanes) {
          store16(to + done * kCols + j, load16(row + j));
        }
      }
    } else if (row_stride == 1) {
      for (int64_t j = 0; j < cols; j += kLanes) {
        const In* column[kLanes];
        for (int64_t q = 0; q < kLanes; ++q)
          column[q] = from + std::min(j + q, cols - 1) * col_stride;
        for (int64_t k = 0; k + kLanes <= kc; k += kLanes) {
          v16 turned[kLanes];
#pragma GCC unroll 16
          for (int64_t q = 0; q < kLanes; ++q) turned[q] = load16(column[q] + k);
          transpose16(turned);
#pragma GCC unroll 16
          for (int64_t q = 0; q < kLanes; ++q) store16(to + (k + q) * kCols + j, turned[q]);
        }
      }
      done = kc / kLanes * kLanes;
    }
  }
  if (cols < kCols) std::fill(to + done * kCols, to + kc * kCols, T(0));
  for (; done < kc; ++done) {
    for (int64_t j = 0; j < cols; ++j) {
      to[done * kCols + j] = T(from[done * row_stride + j * col_stride]);
    }
  }
}

}  // namespace tarn::cpu
