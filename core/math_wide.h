// math_wide.h - float sin, cos, tan, pow and erfc computed through double, for the host's loops.
//
// Same rules as math_float.h (straight-line code that vectorises), for the functions where float
// arithmetic would need tricks to keep its precision. The result is rounded to float once, so the
// error stays below 0.6 ulp. The argument of sin, cos and tan is reduced exactly for every float.
#pragma once

#include "tarn/core/math_float.h"

namespace tarn::math::vec {

inline constexpr double kInfD = std::numeric_limits<double>::infinity();
inline constexpr double kRoundMagic = 6755399441055744.0;  // 1.5 * 2^52

TARN_HD uint64_t bits(double x) {
  return std::bit_cast<uint64_t>(x);
}
TARN_HD double from_bits(uint64_t u) {
  return std::bit_cast<double>(u);
}

/// 2^t with relative error 2^-34. NaN passes; beyond [-200, 200] the bound's value.
TARN_HD double exp2_wide(double t) {
  t = t > 200.0 ? 200.0 : t;
  t = t < -200.0 ? -200.0 : t;
  const double shifted = t + kRoundMagic;
  const double r = t - (shifted - kRoundMagic);
  double q = 1.5314946202495278e-05;
  q = q * r + 0.00015467110183810042;
  q = q * r + 0.0013333430791748872;
  q = q * r + 0.009618036911434404;
  q = q * r + 0.05550410952561281;
  q = q * r + 0.24022651075848592;
  q = q * r + 0.6931471805416615;
  return (1.0 + q * r) * from_bits((bits(shifted) + 1023u) << 52);
}

/// log2(x) of a positive normal double with relative error 2^-37: e + s P(s^2), s = (m-1)/(m+1).
TARN_HD double log2_wide(double x) {
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdu;
  constexpr uint64_t kBias = 1024;
  const uint64_t u = bits(x) - kSqrtHalf + (kBias << 52);
  const double e = from_bits((u >> 52) | 0x4330000000000000u) - (4503599627370496.0 + kBias);
  const double m = from_bits((u & 0xfffffffffffffu) + kSqrtHalf);
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 0.3409487174259383;
  p = p * z + 0.4116613147635988;
  p = p * z + 0.5770837675297548;
  p = p * z + 0.9617966724291234;
  p = p * z + 2.8853900817907734;
  return p * s + e;
}

/// x^y with the special values of C's pow. What depends on y alone is made of integer products:
/// gcc does not vectorise a loop with a select on a condition that the loop does not change.
TARN_HD float pow(float x, float y) {
  constexpr uint32_t kNanBits = 0x7fc00000u, kOneBits = 0x3f800000u, kSignBit = 0x80000000u;
  const float half = y * 0.5f;
  const uint32_t is_integer = __builtin_rintf(y) == y;
  const uint32_t is_half_integer = __builtin_rintf(half) == half;
  const uint32_t odd_sign = kSignBit * (is_integer & (1u - is_half_integer));
  const uint32_t drop_sign = kSignBit * (magnitude(y) == kInfF);
  const uint32_t of_negative = kNanBits * (1u - (is_integer | (y != y)));
  const uint32_t of_nan = kNanBits - (kNanBits - kOneBits) * (y == 0.0f);

  x = from_bits(bits(x) & ~drop_sign);  // (-1)^inf = 1
  const double a = magnitude(x);
  double l = log2_wide(a);  // finite garbage for 0, infinity and NaN
  l = a == kInfD ? 1e300 : l;
  l = a == 0.0 ? -1e300 : l;
  const float r = static_cast<float>(exp2_wide(static_cast<double>(y) * l));
  uint32_t u = bits(r) ^ (bits(x) & odd_sign);
  u |= (x < 0.0f) & (x > -kInfF) ? of_negative : 0u;
  u = x == 1.0f ? kOneBits : u;
  return from_bits(x != x ? of_nan : u);
}

/// 1 - erf(x): exp(-x^2) erfcx(|x|), with erfcx(a) (1 + 2a) a polynomial in (a - 2) / (a + 2).
TARN_HD float erfc(float x) {
  constexpr double kLog2eD = 1.4426950408889634;
  double a = magnitude(x);
  a = a > 10.2 ? 10.2 : a;  // erfc(10.2) is below half the smallest denormal
  const double q = (a - 2.0) / (a + 2.0);
  double p = 7.953307901469564e-05;
  p = p * q + 0.0001696827744462374;
  p = p * q - 0.00040058624945275324;
  p = p * q - 0.0014209833881192377;
  p = p * q + 0.0012524923018764967;
  p = p * q + 0.008709113248378052;
  p = p * q - 0.008030797690146075;
  p = p * q - 0.05421782120300469;
  p = p * q + 0.16405103147397984;
  p = p * q - 0.1660305225468323;
  p = p * q - 0.09276382038636632;
  p = p * q + 1.2769783826919718;
  const double tail = p / (1.0 + 2.0 * a) * exp2_wide(-kLog2eD * (a * a));
  return static_cast<float>(x < 0.0f ? 2.0 - tail : tail);
}

/// x = (quadrant + 4 k) pi/2 + r with |r| <= pi/4.
struct Reduced {
  double r;
  uint64_t quadrant;  // only the low two bits count
};

/// Exact reduction for every float. 2/pi is cut into chunks of 28 bits, so x * chunk is exact in
/// double; chunks whose product is a multiple of 4 are skipped, and four chunks leave an absolute
/// error below 2^-59 quarter turns (a float never comes closer than 2^-31 to a multiple of pi/2).
TARN_HD Reduced reduce_angle(float x) {
  constexpr double k0 = 0x1.45f306cp-1, k1 = 0x1.c9c882ap-29, k2 = 0x1.4fe13a8p-59,
                   k3 = 0x1.f47d4dp-86, k4 = 0x1.bb81b6cp-113, k5 = 0x1.4acc9ep-143,
                   k6 = 0x1.0e4107cp-170;
  const double xd = x;
  const double a = magnitude(x);
  const bool j1 = a >= 0x1p53, j2 = a >= 0x1p81, j3 = a >= 0x1p109;
  const double p0 = xd * (j3 ? k3 : j2 ? k2 : j1 ? k1 : k0);
  const double p1 = xd * (j3 ? k4 : j2 ? k3 : j1 ? k2 : k1);
  const double p2 = xd * (j3 ? k5 : j2 ? k4 : j1 ? k3 : k2);
  const double p3 = xd * (j3 ? k6 : j2 ? k5 : j1 ? k4 : k3);
  const double q0 = p0 - 4.0 * ((p0 * 0.25 + kRoundMagic) - kRoundMagic);
  const double q1 = p1 - 4.0 * ((p1 * 0.25 + kRoundMagic) - kRoundMagic);
  const double shifted = (q0 + q1) + kRoundMagic;
  const double turns = ((q0 - (shifted - kRoundMagic)) + q1) + (p2 + p3);
  return {turns * 1.5707963267948966, bits(shifted)};
}

/// sin(r) for |r| <= pi/4.
TARN_HD double sin_poly(double r) {
  const double z = r * r;
  double p = -2.4761407052296836e-08;
  p = p * z + 2.755535445225546e-06;
  p = p * z - 0.00019841263807854044;
  p = p * z + 0.008333333325245;
  p = p * z - 0.1666666666663145;
  return r * (p * z + 1.0);  // keeps -0
}

/// cos(r) for |r| <= pi/4.
TARN_HD double cos_poly(double r) {
  const double z = r * r;
  double p = -2.7179730484349833e-07;
  p = p * z + 2.4799036032828537e-05;
  p = p * z - 0.0013888881055680816;
  p = p * z + 0.04166666656166635;
  p = p * z - 0.4999999999954286;
  return p * z + 1.0;
}

TARN_HD float sin(float x) {
  const Reduced a = reduce_angle(x);
  const double y = (a.quadrant & 1u) != 0 ? cos_poly(a.r) : sin_poly(a.r);
  return static_cast<float>((a.quadrant & 2u) != 0 ? -y : y);
}

TARN_HD float cos(float x) {
  const Reduced a = reduce_angle(x);
  const double y = (a.quadrant & 1u) != 0 ? sin_poly(a.r) : cos_poly(a.r);
  return static_cast<float>(((a.quadrant + 1u) & 2u) != 0 ? -y : y);
}

TARN_HD float tan(float x) {
  const Reduced a = reduce_angle(x);
  const double s = sin_poly(a.r), c = cos_poly(a.r);
  const bool odd = (a.quadrant & 1u) != 0;
  return static_cast<float>((odd ? -c : s) / (odd ? s : c));
}

}  // namespace tarn::math::vec
