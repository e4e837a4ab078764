// half_lanes.h - sixteen bf16 or f16 at a time, read as sixteen floats; bf16 rounded from them.
//
// The same bits as bfloat16 one by one: round to nearest even, subnormals kept, any NaN becomes
// 0x7FC0. (AVX-512's own conversion would take subnormals as zero.)
#pragma once

#include "tarn/core/cpu/simd16.h"
#include "tarn/core/half.h"

namespace tarn::cpu {

#if defined(__AVX512F__)
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint16_t u16x16_unaligned __attribute__((vector_size(32), aligned(2), may_alias));

TARN_INLINE v16 load16(const bfloat16* p) {
  const u16x16 bits = *reinterpret_cast<const u16x16_unaligned*>(p);
  return reinterpret_cast<v16>(__builtin_convertvector(bits, u32x16) << 16);
}

TARN_INLINE void store16(bfloat16* p, v16 v) {
  const u32x16 x = reinterpret_cast<u32x16>(v);
  const u32x16 rounded = (x + 0x7FFFu + ((x >> 16) & 1u)) >> 16;
  const u32x16 nan = u32x16{} + 0x7FC0u;
  *reinterpret_cast<u16x16_unaligned*>(p) =
      __builtin_convertvector((x & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded, u16x16);
}

/// Sixteen f16: every one of them is a float.
TARN_INLINE v16 load16(const half* p) {
  return reinterpret_cast<v16>(
      _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p))));
}
#else
TARN_INLINE v16 load16(const half* p) {
  alignas(64) float values[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) values[i] = p[i];
  return load16(values);
}

TARN_INLINE v16 load16(const bfloat16* p) {
  alignas(64) float values[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) values[i] = p[i];
  return load16(values);
}

TARN_INLINE void store16(bfloat16* p, v16 v) {
  alignas(64) float values[kLanes];
  store16(values, v);
  for (int64_t i = 0; i < kLanes; ++i) p[i] = bfloat16(values[i]);
}
#endif

/// The first `count` (0 < count < 16) halves at p, then zeros; reads nothing beyond them.
template <typename Half>
TARN_INLINE v16 load16_partial(const Half* p, int64_t count) {
  alignas(64) float values[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) values[i] = p[i];
  return load16(values);
}

TARN_INLINE void store16_partial(bfloat16* p, v16 v, int64_t count) {
  alignas(64) float values[kLanes];
  store16(values, v);
  for (int64_t i = 0; i < count; ++i) p[i] = bfloat16(values[i]);
}

}  // namespace tarn::cpu
