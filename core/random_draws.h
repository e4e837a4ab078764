// random_draws.h - from Philox's bits to numbers: the formulas that CPU and CUDA kernels share.
//
// Element i of a 32-bit draw uses lane i % 4 of counter offset + i / 4; a 64-bit draw (f64, and
// integers) uses lanes 2 (i % 2) and 2 (i % 2) + 1 of counter offset + i / 2.
#pragma once

#include "tarn/core/dtype.h"
#include "tarn/core/math.h"
#include "tarn/core/random.h"

namespace tarn::draws {

/// Counters that n draws use up.
constexpr uint64_t counters32(int64_t n) {
  return static_cast<uint64_t>(n + 3) / 4;
}
constexpr uint64_t counters64(int64_t n) {
  return static_cast<uint64_t>(n + 1) / 2;
}

/// [0, 1) in steps that T can hold, so that 1 is never reached by rounding.
template <class T>
TARN_HD float unit(uint32_t r) {
  constexpr int kBits = sizeof(T) == 4 ? 24 : dtype_of<T> == DType::kF16 ? 11 : 8;
  constexpr float kStep = 1.0f / static_cast<float>(1 << kBits);
  return static_cast<float>(r >> (32 - kBits)) * kStep;
}

/// low + u * (high - low), kept below high when that rounds up.
template <class T>
TARN_HD T between(compute_t<T> low, compute_t<T> high, compute_t<T> u) {
  const T v = T(low + u * (high - low));
  return static_cast<compute_t<T>>(v) >= high ? T(low) : v;
}

template <class C>
struct NormalPair {
  C a, b;
};

/// Two standard normals by Box and Muller (1958): sqrt(-2 ln u1) * {cos, sin}(2 pi u2).
TARN_HD NormalPair<float> normal_pair(uint32_t r1, uint32_t r2) {
  const float u1 = static_cast<float>(r1) * 0x1p-32f + 0x1p-33f;  // (0, 1]
  const float radius = math::sqrt(-2.0f * math::log(u1));
  // The angle in quarter turns is exact: q whole ones and t in [-1/2, 1/2].
  const float turns = static_cast<float>(r2 >> 8) * 0x1p-22f;
  const float q = static_cast<float>(static_cast<int32_t>(turns + 0.5f));
  const float x = (turns - q) * 1.57079632679489662f;
  const float x2 = x * x;
  const float s =
      x + x * x2 * (-1.6666654611e-1f + x2 * (8.3321608736e-3f + x2 * -1.9515295891e-4f));
  const float c =
      1.0f - 0.5f * x2 +
      x2 * x2 *
          (4.166664568298827e-2f + x2 * (-1.388731625493765e-3f + x2 * 2.443315711809948e-5f));
  const auto quadrant = static_cast<int32_t>(q);
  const float cq = quadrant & 1 ? -s : c;
  const float sq = quadrant & 1 ? c : s;
  return {radius * (quadrant & 2 ? -cq : cq), radius * (quadrant & 2 ? -sq : sq)};
}
TARN_HD NormalPair<double> normal_pair(uint32_t r1hi, uint32_t r1lo, uint32_t r2hi, uint32_t r2lo) {
  const double u1 = 1.0 - philox_uniform_double(r1hi, r1lo);  // (0, 1]
  const double angle = 6.28318530717958648 * philox_uniform_double(r2hi, r2lo);
  const double radius = math::sqrt(-2.0 * math::log(u1));
  return {radius * math::cos(angle), radius * math::sin(angle)};
}

/// A 32-bit draw below this happens with probability p; 2^32 for p = 1.
TARN_HD uint64_t threshold(double p) {
  return static_cast<uint64_t>(p * 0x1p32 + 0.5);
}

/// The high half of bits * range: uniform in [0, range) up to a bias of range / 2^64.
TARN_HD uint64_t below(uint32_t hi, uint32_t lo, uint64_t range) {
  const uint64_t r_lo = range & 0xFFFFFFFFu, r_hi = range >> 32;
  const uint64_t carry = (lo * r_lo) >> 32;
  const uint64_t mid1 = hi * r_lo + carry;
  const uint64_t mid2 = lo * r_hi + (mid1 & 0xFFFFFFFFu);
  return hi * r_hi + (mid1 >> 32) + (mid2 >> 32);
}

}  // namespace tarn::draws
