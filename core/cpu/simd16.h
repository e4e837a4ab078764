// simd16.h - sixteen floats at a time: the vector type of the convolution and matmul kernels.
//
// GCC/Clang vector extensions: one AVX-512 register, or a pair of AVX2 ones (as a struct, for
// vectors wider than a register live on the stack). Products and sums contract to fused
// multiply-adds where the machine has them.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// Without AVX-512 a 64-byte vector has no calling convention of its own, and GCC says so at every
// function that takes one. All of them are inlined or internal to a file.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__AVX512F__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define TARN_INLINE inline __attribute__((always_inline))
#define TARN_LAMBDA_INLINE __attribute__((always_inline))

namespace tarn::cpu {

constexpr int64_t kLanes = 16;

#if defined(__AVX512F__)
typedef float v16 __attribute__((vector_size(64)));
typedef float v16_unaligned __attribute__((vector_size(64), aligned(4), may_alias));

TARN_INLINE v16 load16(const float* p) {
  return *reinterpret_cast<const v16_unaligned*>(p);
}
TARN_INLINE void store16(float* p, v16 v) {
  *reinterpret_cast<v16_unaligned*>(p) = v;
}
#else
typedef float v8 __attribute__((vector_size(32)));
typedef float v8_unaligned __attribute__((vector_size(32), aligned(4), may_alias));

struct v16 {
  v8 low, high;
};
TARN_INLINE v16 operator+(v16 a, v16 b) {
  return {a.low + b.low, a.high + b.high};
}
TARN_INLINE v16 operator-(v16 a, v16 b) {
  return {a.low - b.low, a.high - b.high};
}
TARN_INLINE v16& operator+=(v16& a, v16 b) {
  return a = a + b;
}
TARN_INLINE v16 operator*(v16 a, v16 b) {
  return {a.low * b.low, a.high * b.high};
}
TARN_INLINE v16 operator*(float a, v16 b) {
  return {a * b.low, a * b.high};
}
TARN_INLINE v16 operator-(float a, v16 b) {
  return {a - b.low, a - b.high};
}
TARN_INLINE v16 load16(const float* p) {
  return {*reinterpret_cast<const v8_unaligned*>(p), *reinterpret_cast<const v8_unaligned*>(p + 8)};
}
TARN_INLINE void store16(float* p, v16 v) {
  *reinterpret_cast<v8_unaligned*>(p) = v.low;
  *reinterpret_cast<v8_unaligned*>(p + 8) = v.high;
}
#endif
TARN_INLINE v16 splat16(float s) {
  return s - v16{};
}

/// The first `count` floats (0 < count < 16) at p, then zeros; reads nothing beyond them.
TARN_INLINE v16 load16_partial(const float* p, int64_t count) {
#if defined(__AVX512F__)
  return reinterpret_cast<v16>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p));
#else
  v16 v = {};
  std::memcpy(&v, p, static_cast<size_t>(count) * sizeof(float));
  return v;
#endif
}

TARN_INLINE void store16_partial(float* p, v16 v, int64_t count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), reinterpret_cast<__m512>(v));
#else
  std::memcpy(p, &v, static_cast<size_t>(count) * sizeof(float));
#endif
}

#if defined(__AVX512F__)
/// Transposes a 16 x 16 block held in sixteen vectors, in place (64 shuffles).
TARN_INLINE void transpose16(v16 r[16]) {
  v16 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {  // pairs of rows: interleave single floats within 128-bit lanes
    t[2 * i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9,
                                       25, 12, 28, 13, 29);
    t[2 * i + 1] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10,
                                           26, 11, 27, 14, 30, 15, 31);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // interleave pairs of floats
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const v16 a = t[4 * i + j], b = t[4 * i + j + 2];
      r[4 * i + 2 * j] =
          __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      r[4 * i + 2 * j + 1] =
          __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // 128-bit lanes, even against odd
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const v16 a = r[8 * i + j], b = r[8 * i + j + 4];
      t[8 * i + j] =
          __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      t[8 * i + j + 4] =
          __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const v16 a = t[j], b = t[j + 8];
    r[j] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    r[j + 8] =
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
}
#else
/// Transposes an 8 x 8 block held in eight vectors, in place.
TARN_INLINE void transpose8(v8 r[8]) {
  v8 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {  // pairs of rows: interleave single floats within 128-bit lanes
    t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  v8 u[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {  // interleave pairs of floats
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const v8 a = t[i + j], b = t[i + j + 2];
      u[i + 2 * j] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      u[i + 2 * j + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    r[j] = __builtin_shufflevector(u[j], u[j + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[j + 4] = __builtin_shufflevector(u[j], u[j + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

/// Transposes a 16 x 16 block held in sixteen vectors, in place.
TARN_INLINE void transpose16(v16 r[16]) {
  v8 block[4][8];  // rows below and above 8, each with its low and high half
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    block[0][i] = r[i].low, block[1][i] = r[i].high;
    block[2][i] = r[i + 8].low, block[3][i] = r[i + 8].high;
  }
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) transpose8(block[q]);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    r[i] = {block[0][i], block[2][i]};
    r[i + 8] = {block[1][i], block[3][i]};
  }
}
#endif

}  // namespace tarn::cpu
