// half.h - IEEE half precision and bfloat16 as storage types.
//
// Both hold 16 bits and convert to and from float exactly as the hardware does: to float is exact,
// from float rounds to nearest, ties to even, overflow goes to infinity, NaN stays a (quiet) NaN.
// Arithmetic happens in float. The conversions are branch-free so that loops over them vectorise;
// on a GPU they are one instruction, with the same bits for all but the payload of a NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "tarn/core/hd.h"

namespace tarn {

/// IEEE 754 binary16: 5 exponent bits, 10 mantissa bits, largest finite value 65504.
struct half {
  uint16_t bits;

  half() = default;
  TARN_HD half(float value) : bits(from_float(value)) {}
  TARN_HD operator float() const { return to_float(bits); }

  static TARN_HD half from_bits(uint16_t bits) {
    half h;
    h.bits = bits;
    return h;
  }

  static TARN_HD uint16_t from_float(float value) {
#if defined(__CUDA_ARCH__)
    uint16_t hardware;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(hardware) : "f"(value));
    return hardware;
#else
    const uint32_t x = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (x >> 16) & 0x8000u;
    const uint32_t a = x & 0x7FFFFFFFu;
    // Normal range: re-bias the exponent and round the 13 dropped bits to nearest even.
    const uint32_t normal = (a + 0xC8000FFFu + ((a >> 13) & 1u)) >> 13;
    // Below 2^-14 the unit is 2^-24: adding 0.5f lets the float adder do the rounding.
    const float shifted = std::bit_cast<float>(a) + 0.5f;
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3F000000u;
    uint32_t r = a < 0x38800000u ? subnormal : normal;
    r = a >= 0x477FF000u ? 0x7C00u : r;  // 65520 and beyond round to infinity
    r = a > 0x7F800000u ? 0x7E00u : r;   // NaN
    return static_cast<uint16_t>(r | sign);
#endif
  }

  static TARN_HD float to_float(uint16_t h) {
#if defined(__CUDA_ARCH__)
    float hardware;
    asm("cvt.f32.f16 %0, %1;" : "=f"(hardware) : "h"(h));
    return hardware;
#else
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t a = h & 0x7FFFu;
    // Multiplying by 2^112 re-biases the exponent and makes subnormals right as well.
    const float scaled = std::bit_cast<float>(a << 13) * 0x1p112f;
    uint32_t r = std::bit_cast<uint32_t>(scaled);
    r = a >= 0x7C00u ? (a << 13) | 0x7F800000u : r;
    return std::bit_cast<float>(r | sign);
#endif
  }
};

/// bfloat16: the upper half of a float; 8 exponent bits, 7 mantissa bits.
struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  TARN_HD bfloat16(float value) : bits(from_float(value)) {}
  TARN_HD operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

  static TARN_HD bfloat16 from_bits(uint16_t bits) {
    bfloat16 b;
    b.bits = bits;
    return b;
  }

  static TARN_HD uint16_t from_float(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t hardware;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(hardware) : "f"(value));
    return hardware;
#else
    const uint32_t x = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (x + 0x7FFFu + ((x >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>((x & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
#endif
  }
};

static_assert(sizeof(half) == 2 && sizeof(bfloat16) == 2);

}  // namespace tarn
