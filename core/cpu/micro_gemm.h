// micro_gemm.h - the register-blocked inner loop under Winograd and the own matrix product.
//
// C[MR, NV vectors] (+)= A[MR, kc] * B[kc, NV vectors]. A is read in place, one broadcast per row
// and step; B has dense rows. 14 x 2 vectors keeps 28 of 32 AVX-512 registers as accumulators: 28
// fused multiply-adds for 16 loads. AVX2 has 16 registers: 6 x 2. Every element is summed in the
// order of k, then bias and old value are added: the bits do not depend on how rows and columns are
// split.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "tarn/core/cpu/simd16.h"
#include "tarn/core/cpu/vector_bytes.h"

namespace tarn::cpu {

constexpr int64_t kMaxRows = kVectorBytes == 64 ? 14 : 6;  // rows of the largest register block

/// The vector of T that fills a register.
template <typename T>
struct Wide;
template <>
struct Wide<float> {
  typedef float type __attribute__((vector_size(kVectorBytes)));
  typedef float unaligned __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
};
template <>
struct Wide<double> {
  typedef double type __attribute__((vector_size(kVectorBytes)));
  typedef double unaligned __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
};
template <typename T>
constexpr int64_t kWidth = kVectorBytes / static_cast<int64_t>(sizeof(T));
/// Columns of a packed panel of B: two vectors.
template <typename T>
constexpr int64_t kPanelOf = 2 * kWidth<T>;
constexpr int64_t kPanel = kPanelOf<float>;

struct StrideA {
  int64_t row, depth;  // elements between rows, and between steps of k
};

/// Memory that is packed next: fetched into the L2 cache while products form, a little per row of a
/// register block. Pairs of cache lines, `run` of them side by side (`step` bytes apart), then the
/// next run.
struct Ahead {
  const char* at = nullptr;
  int64_t pairs = 0;    // still to fetch
  int64_t at_once = 0;  // per row
  int64_t step = 0, run = 0, to_next_run = 0;
  int64_t left_in_run = 0;

  TARN_INLINE void fetch() {
    const int64_t n = std::min(at_once, pairs);
    pairs -= n;
    for (int64_t i = 0; i < n; ++i) {
      __builtin_prefetch(at, 0, 2);
      __builtin_prefetch(at + 64, 0, 2);
      at += step;
      if (--left_in_run == 0) at += to_next_run, left_in_run = run;
    }
  }
};

/// kRow and kDepth are A's strides where they are constant (they become displacements), else 0.
template <typename T, int MR, int NV, int64_t kRow, int64_t kDepth>
void micro_gemm(int64_t kc, const T* __restrict a, StrideA strides, const T* __restrict b,
                int64_t ldb, T* __restrict c, int64_t ldc, bool accumulate, const T* bias,
                Ahead* ahead) {
  using V = typename Wide<T>::type;
  using U = typename Wide<T>::unaligned;
  constexpr int64_t kW = kWidth<T>;
  const int64_t row = kRow != 0 ? kRow : strides.row;
  const int64_t depth = kDepth != 0 ? kDepth : strides.depth;
  V acc[MR][NV];
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) acc[r][j] = V{};
  }
  // Rows are addressed from every third one (base, base + row, base + 2 row): fourteen pointers
  // would not fit the integer registers. Where rows lie side by side one pointer is enough.
  constexpr int kApart = kRow == 1 ? MR : 3;
  constexpr int kBases = (MR + kApart - 1) / kApart;
  const T* base[kBases];
#pragma GCC unroll 8
  for (int i = 0; i < kBases; ++i) base[i] = a + kApart * i * row;
  // C is added to at the end: loaded first, it would be waited for. Its rows are fetched one by one
  // while the sums form: all at once they would hold up what else misses the L1 cache.
  const T* row_ahead = c;
  const bool straddles =
      (reinterpret_cast<uintptr_t>(c) | static_cast<uintptr_t>(ldc) * sizeof(T)) % 64 != 0;
  const int64_t steps_per_row = kc / MR + 1;
  for (int64_t k = 0; k < kc;) {
    __builtin_prefetch(row_ahead, 1);
    if constexpr (NV > 1) __builtin_prefetch(row_ahead + kW, 1);
    if (straddles) __builtin_prefetch(row_ahead + NV * kW - 1, 1);
    row_ahead += ldc;
    if (ahead != nullptr) ahead->fetch();
    for (const int64_t end = std::min(kc, k + steps_per_row); k < end; ++k) {
      V bv[NV];
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) bv[j] = *reinterpret_cast<const U*>(b + j * kW);
      b += ldb;
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) {
        const V av = base[r / kApart][r % kApart * row] - V{};
#pragma GCC unroll 2
        for (int j = 0; j < NV; ++j) acc[r][j] += av * bv[j];
      }
#pragma GCC unroll 8
      for (int i = 0; i < kBases; ++i) base[i] += depth;
    }
  }
  if (bias != nullptr) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) {
      const V add = *reinterpret_cast<const U*>(bias + j * kW);
#pragma GCC unroll 16
      for (int r = 0; r < MR; ++r) acc[r][j] += add;
    }
  }
  asm("" : "+r"(c));  // so that the addresses of all rows are not kept through the loop
  if (accumulate) {
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) acc[r][j] += V(*reinterpret_cast<U*>(c + r * ldc + j * kW));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) *reinterpret_cast<U*>(c + r * ldc + j * kW) = acc[r][j];
  }
}

template <typename T>
using MicroGemm = void (*)(int64_t, const T*, StrideA, const T*, int64_t, T*, int64_t, bool,
                           const T*, Ahead*);

template <typename T, int NV, int64_t kRow, int64_t kDepth, int... kRows>
constexpr std::array<MicroGemm<T>, sizeof...(kRows)> micro_gemm_list(
    std::integer_sequence<int, kRows...>) {
  return {&micro_gemm<T, kRows + 1, NV, kRow, kDepth>...};
}

/// Rows and where they start among rows that are split evenly for the microkernel.
struct RowBlock {
  int64_t first, count;
};
inline int64_t row_blocks(int64_t rows) {
  return (rows + kMaxRows - 1) / kMaxRows;
}
inline RowBlock row_block(int64_t rows, int64_t i) {
  const int64_t blocks = row_blocks(rows), first = rows * i / blocks;
  return {first, rows * (i + 1) / blocks - first};
}

/// C[rows, columns] (+)= A * B over one panel of B; columns <= kPanelOf<T>, and C must have room
/// for columns rounded up to a vector. Rows are split evenly into register blocks.
template <typename T, int64_t kRow, int64_t kDepth>
inline void panel_gemm(int64_t rows, int64_t columns, int64_t kc, const T* a, StrideA strides,
                       const T* b, int64_t ldb, T* c, int64_t ldc, bool accumulate,
                       const T* bias = nullptr, Ahead* ahead = nullptr) {
  static constexpr auto kRows = std::make_integer_sequence<int, kMaxRows>{};
  static constexpr auto kOne = micro_gemm_list<T, 1, kRow, kDepth>(kRows);
  static constexpr auto kTwo = micro_gemm_list<T, 2, kRow, kDepth>(kRows);
  const auto& kernels = columns > kWidth<T> ? kTwo : kOne;
  const int64_t row = kRow != 0 ? kRow : strides.row;
  for (int64_t i = 0; i < row_blocks(rows); ++i) {
    const auto [first, count] = row_block(rows, i);
    kernels[static_cast<size_t>(count - 1)](kc, a + first * row, strides, b, ldb, c + first * ldc,
                                            ldc, accumulate, bias, ahead);
  }
}

/// The same for A packed as pack_a (gemm_pack.h) leaves it: one stream of memory per register
/// block.
template <typename T>
inline void packed_gemm(int64_t rows, int64_t columns, int64_t kc, const T* a, const T* b,
                        int64_t ldb, T* c, int64_t ldc, bool accumulate, const T* bias,
                        Ahead* ahead = nullptr) {
  static constexpr auto kRows = std::make_integer_sequence<int, kMaxRows>{};
  static constexpr auto kOne = micro_gemm_list<T, 1, 1, kMaxRows>(kRows);
  static constexpr auto kTwo = micro_gemm_list<T, 2, 1, kMaxRows>(kRows);
  const auto& kernels = columns > kWidth<T> ? kTwo : kOne;
  for (int64_t i = 0; i < row_blocks(rows); ++i) {
    const auto [first, count] = row_block(rows, i);
    kernels[static_cast<size_t>(count - 1)](kc, a + i * kMaxRows * kc, {}, b, ldb, c + first * ldc,
                                            ldc, accumulate, bias, ahead);
  }
}

}  // namespace tarn::cpu
