// math_float.h - branch-free float exp, log, tanh, erf and relatives for the host's vector loops.
//
// Every function is straight-line code with selects, so that gcc turns a plain loop over it into
// full-width vector code (needs -fno-trapping-math -fno-math-errno). All are right for NaN,
// infinities, both zeros and denormals; the largest errors found by a sweep stand at each function
// and are held by tests. Polynomials are minimax fits of the written function on the written
// interval, coefficients rounded to float. Nothing here relies on fused multiply-add.
//
// Integers travel as uint32_t: a NaN gives garbage there, which must be defined behaviour.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tarn/core/hd.h"

namespace tarn::math::vec {

inline constexpr float kInfF = std::numeric_limits<float>::infinity();
inline constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kLog2e = 1.44269504f;
// ln 2 in two parts; the first has 10 significant bits, so n * kLn2Hi is exact for |n| < 2^14.
inline constexpr float kLn2Hi = 0.693359375f;
inline constexpr float kLn2Lo = -2.12194440e-4f;

TARN_HD uint32_t bits(float x) {
  return std::bit_cast<uint32_t>(x);
}
TARN_HD float from_bits(uint32_t u) {
  return std::bit_cast<float>(u);
}
TARN_HD float magnitude(float x) {
  return from_bits(bits(x) & 0x7fffffffu);
}
TARN_HD float with_sign_of(float mag, float sign) {
  return from_bits((bits(mag) & 0x7fffffffu) | (bits(sign) & 0x80000000u));
}

/// Nearest integer of |x| < 2^22, as float and as two's complement bits.
struct Rounded {
  float value;
  uint32_t integer;
};
TARN_HD Rounded round_small(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the unit in the last place is 1
  const float shifted = x + kMagic;
  return {shifted - kMagic, bits(shifted) - std::bit_cast<uint32_t>(kMagic)};
}

/// 2^n for -126 <= n <= 127.
TARN_HD float pow2(uint32_t n) {
  return from_bits((n + 127u) << 23);
}

/// x * 2^n for -250 <= n <= 254, rounded once (also into the denormals, when x is in [0.5, 2)).
TARN_HD float scale(float x, uint32_t n) {
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(n) >> 1);
  return x * pow2(half) * pow2(n - half);
}

/// Clamps to [lo, hi]; NaN passes through.
TARN_HD float bound(float x, float lo, float hi) {
  x = x > hi ? hi : x;
  return x < lo ? lo : x;
}

/// e^r - 1 for |r| <= 0.35, good for 1 + result: r + r^2 Q(r).
TARN_HD float exp_tail(float r) {
  float q = 1.3813162e-3f;
  q = q * r + 8.36941e-3f;
  q = q * r + 4.1668456e-2f;
  q = q * r + 1.6666515e-1f;
  q = q * r + 4.9999994e-1f;
  return (q * r) * r + r;
}

/// e^x. Error <= 1.0 ulp.
TARN_HD float exp(float x) {
  x = bound(x, -104.0f, 89.0f);  // beyond: 0 and infinity come out of the scaling
  const Rounded n = round_small(x * kLog2e);
  const float r = (x - n.value * kLn2Hi) - n.value * kLn2Lo;
  return scale(1.0f + exp_tail(r), n.integer);
}

/// 2^x. Error <= 1.0 ulp.
TARN_HD float exp2(float x) {
  x = bound(x, -151.0f, 129.0f);
  const Rounded n = round_small(x);
  return scale(1.0f + exp_tail((x - n.value) * 0.693147181f), n.integer);
}

/// e^x - 1. Error <= 1.7 ulp.
/// 2^n (e^r - 1) + (2^n - 1), the rounding error of r carried along because it is amplified there.
TARN_HD float expm1(float x) {
  const float xc = bound(x, -30.0f, 89.0f);
  const Rounded n = round_small(xc * kLog2e);
  const float exact = xc - n.value * kLn2Hi;
  const float r = exact - n.value * kLn2Lo;
  const float r_lo = (exact - r) - n.value * kLn2Lo;
  float q = 2.0864619e-4f;
  q = q * r + 1.3917836e-3f;
  q = q * r + 8.331915e-3f;
  q = q * r + 4.1666694e-2f;
  q = q * r + 1.6666669e-1f;
  q = q * r + 0.5f;
  const float p = r + ((q * r) * r + r_lo);
  const float half_scale = pow2(n.integer - 1u);  // half: 2^128 does not fit
  const float y = 2.0f * (half_scale * p + (half_scale - 0.5f));
  const float near_zero = magnitude(x) < 5.9604645e-8f ? x : p;  // keeps -0 and denormals
  return n.value == 0.0f ? near_zero : y;
}

/// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
struct LogParts {
  float e;
  float f;
};
TARN_HD LogParts log_split(float x) {
  constexpr uint32_t kSqrtHalf = 0x3f3504f3u;
  const bool tiny = x < std::numeric_limits<float>::min();
  const uint32_t u = bits(tiny ? x * 8388608.0f : x) - kSqrtHalf;
  const float e = static_cast<float>(static_cast<int32_t>(u) >> 23);
  return {tiny ? e - 23.0f : e, from_bits((u & 0x7fffffu) + kSqrtHalf) - 1.0f};
}

/// log(1 + f) - f for 1 + f in [sqrt(1/2), sqrt(2)): f^3 P(f) - f^2 / 2.
TARN_HD float log_tail(float f) {
  float p = -7.8598596e-2f;
  p = p * f + 1.2881778e-1f;
  p = p * f - 1.3128714e-1f;
  p = p * f + 1.4181168e-1f;
  p = p * f - 1.6624556e-1f;
  p = p * f + 2.0002288e-1f;
  p = p * f - 2.500081e-1f;
  p = p * f + 3.3333316e-1f;
  const float f2 = f * f;
  return (p * f) * f2 - 0.5f * f2;
}

/// The logarithm's special values: -inf at 0, NaN below, inf at inf, else y.
TARN_HD float log_specials(float x, float y) {
  const float nonpositive = x == 0.0f ? -kInfF : kNanF;
  const float positive = x == kInfF ? x : y;
  return x > 0.0f ? positive : nonpositive;
}

/// Natural logarithm. Error <= 1.0 ulp.
TARN_HD float log(float x) {
  const LogParts s = log_split(x);
  const float y = s.f + (log_tail(s.f) + s.e * kLn2Lo);
  return log_specials(x, y + s.e * kLn2Hi);
}

/// Base-2 logarithm. Error <= 2 ulp.
TARN_HD float log2(float x) {
  constexpr float kLog2eMinus1 = 0.442695041f;
  const LogParts s = log_split(x);
  const float t = log_tail(s.f);
  const float y = ((t * kLog2eMinus1 + s.f * kLog2eMinus1) + t) + s.f;
  return log_specials(x, y + s.e);
}

/// Base-10 logarithm. Error <= 2 ulp.
TARN_HD float log10(float x) {
  constexpr float kLog10eHi = 0.43359375f, kLog10eLo = 7.00731903e-4f;
  constexpr float kLog10Of2Hi = 0.30078125f, kLog10Of2Lo = 2.48745664e-4f;
  const LogParts s = log_split(x);
  const float t = log_tail(s.f);
  float y = (s.f + t) * kLog10eLo + s.e * kLog10Of2Lo;
  y = (y + t * kLog10eHi) + s.f * kLog10eHi;
  return log_specials(x, y + s.e * kLog10Of2Hi);
}

/// log(1 + x). Error <= 1.5 ulp. The part of x that 1 + x rounds away returns as a correction.
TARN_HD float log1p(float x) {
  const float u = 1.0f + x;
  const LogParts s = log_split(u);
  const float lost = x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  const float f = s.e == 0.0f ? x : s.f;
  const float c = s.e == 0.0f ? 0.0f : lost / u;
  const float y = (f + (log_tail(f) + (s.e * kLn2Lo + c))) + s.e * kLn2Hi;
  return magnitude(x) < 2.9802322e-8f ? x : log_specials(u, y);
}

/// Hyperbolic tangent. Error <= 1.6 ulp. An odd polynomial near 0, else 1 - 2 / (e^2x + 1).
TARN_HD float tanh(float x) {
  const float a = magnitude(x);
  const float z = a * a;
  float p = -5.7170433e-3f;
  p = p * z + 2.0650586e-2f;
  p = p * z - 5.3743497e-2f;
  p = p * z + 1.3331491e-1f;
  p = p * z - 3.3333284e-1f;
  const float small = (p * z) * a + a;
  const float t = a > 10.0f ? 10.0f : a;  // 1 - tanh(10) < 2^-27
  const Rounded n = round_small(t * (2.0f * kLog2e));
  const float r = (2.0f * t - n.value * kLn2Hi) - n.value * kLn2Lo;
  const float e = pow2(n.integer) * (1.0f + exp_tail(r));
  const float large = 1.0f - 2.0f / (e + 1.0f);
  return with_sign_of(a < 0.625f ? small : large, x);
}

/// 1 / (1 + e^-x). Error <= 1.8 ulp. Through e^-|x| = s (1 + t), so the left tail keeps its
/// precision: there s / (1 + e) * (1 + t), which never rounds 1 + t alone.
TARN_HD float sigmoid(float x) {
  const float a = bound(-magnitude(x), -104.0f, 0.0f);
  const Rounded n = round_small(a * kLog2e);
  const float t = exp_tail((a - n.value * kLn2Hi) - n.value * kLn2Lo);
  const float s = scale(1.0f, n.integer);
  const bool left = x < 0.0f;
  const float q = (left ? s : 1.0f) / (1.0f + (s + s * t));
  return q + q * (left ? t : (x == x ? 0.0f : x));
}

/// Error function. Error <= 1.5 ulp. x + x R(x^2) below 0.925, 1 - exp(-t P(t)) above.
TARN_HD float erf(float x) {
  const float a = magnitude(x);
  const float z = a * a;
  float s = -5.976893e-4f;
  s = s * z + 4.99098e-3f;
  s = s * z - 2.6765566e-2f;
  s = s * z + 1.12818025e-1f;
  s = s * z - 3.7612495e-1f;
  s = s * z + 1.2837915e-1f;
  const float small = s * a + a;
  const float t = a > 4.0f ? 4.0f : a;  // 1 - erf(4) < 2^-25
  float p = 1.1231298e-5f;
  p = p * t - 3.2280377e-4f;
  p = p * t + 3.6424587e-3f;
  p = p * t - 2.3762062e-2f;
  p = p * t + 1.06236875e-1f;
  p = p * t + 6.351513e-1f;
  p = p * t + 1.1286485f;
  const float q = -(p * t);
  const Rounded n = round_small(q * kLog2e);
  const float r = (q - n.value * kLn2Hi) - n.value * kLn2Lo;
  const float large = 1.0f - pow2(n.integer) * (1.0f + exp_tail(r));
  return with_sign_of(a < 0.925f ? small : large, x);
}

}  // namespace tarn::math::vec
