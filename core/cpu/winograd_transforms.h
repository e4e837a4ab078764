// winograd_transforms.h - the small matrices of Winograd F(4x4, 3x3), sixteen channels at a time.
//
// Six interpolation points 0, +-a, +-b, infinity. With d a 6x6 input tile, g a 3x3 filter and Y the
// 4x4 output tile (Lavin and Gray 2015, arXiv:1509.09308):
//   Y = A^T [ (G g G^T) * (B^T d B) ] A
// and, with y a 4x4 tile of the output's gradient, the 3x3 filter gradient of the same tile is
//   W = C^T [ (H y H^T) * (B^T d B) ] C,   F(3x3, 4x4) over the same points.
// a = 5/8, b = 3/2 keep the entries close to 1 and with that the rounding error near that of the
// direct sum (Barabasz et al. 2018, arXiv:1803.10986); the classic 1, 2 lose about twice as much.
#pragma once

#include "tarn/core/cpu/simd16.h"

namespace tarn::cpu::winograd {

#ifndef WA
#define WA 0.625f
#define WB 1.5f
#endif
constexpr float kA = WA, kB = WB;
constexpr float kA2 = kA * kA, kB2 = kB * kB;
constexpr float kA3 = kA2 * kA, kB3 = kB2 * kB;
// 1 / prod(p - q) over the other finite points q, for p = 0, +-a, +-b.
constexpr float kN0 = static_cast<float>(1.0 / (double(kA) * kA * kB * kB));
constexpr float kNa =
    static_cast<float>(1.0 / (2.0 * kA * kA * (double(kA) * kA - double(kB) * kB)));
constexpr float kNb =
    static_cast<float>(1.0 / (2.0 * kB * kB * (double(kB) * kB - double(kA) * kA)));

/// B^T d: six samples to six points.
TARN_INLINE void input_points(const v16 d[6], v16 v[6]) {
  const v16 ea = d[4] - kB2 * d[2], oa = d[3] - kB2 * d[1];
  const v16 eb = d[4] - kA2 * d[2], ob = d[3] - kA2 * d[1];
  v[0] = kA2 * kB2 * d[0] + (d[4] - (kA2 + kB2) * d[2]);
  v[1] = ea + kA * oa;
  v[2] = ea - kA * oa;
  v[3] = eb + kB * ob;
  v[4] = eb - kB * ob;
  v[5] = kA2 * kB2 * d[1] + (d[5] - (kA2 + kB2) * d[3]);
}

/// B^T D B of a 6x6 patch, two rows of points at a time: twelve values stay in registers, where all
/// 36 at once would go through the stack. load(r, s) gives samples, store(i, j, v) takes points.
template <typename Load, typename Store>
TARN_INLINE void input_points_2d(Load load, Store store) {
  const auto finish = [&](const v16 first[6], int i, const v16 second[6], int k)
                          TARN_LAMBDA_INLINE {
                            v16 out[6];
                            input_points(first, out);
#pragma GCC unroll 9
                            for (int j = 0; j < 6; ++j) store(i, j, out[j]);
                            input_points(second, out);
#pragma GCC unroll 9
                            for (int j = 0; j < 6; ++j) store(k, j, out[j]);
                          };
  v16 first[6], second[6];
#pragma GCC unroll 9
  for (int s = 0; s < 6; ++s) {
    const v16 even = load(4, s) - kB2 * load(2, s), odd = load(3, s) - kB2 * load(1, s);
    first[s] = even + kA * odd;
    second[s] = even - kA * odd;
  }
  finish(first, 1, second, 2);
#pragma GCC unroll 9
  for (int s = 0; s < 6; ++s) {
    const v16 even = load(4, s) - kA2 * load(2, s), odd = load(3, s) - kA2 * load(1, s);
    first[s] = even + kB * odd;
    second[s] = even - kB * odd;
  }
  finish(first, 3, second, 4);
#pragma GCC unroll 9
  for (int s = 0; s < 6; ++s) {
    first[s] = kA2 * kB2 * load(0, s) + (load(4, s) - (kA2 + kB2) * load(2, s));
    second[s] = kA2 * kB2 * load(1, s) + (load(5, s) - (kA2 + kB2) * load(3, s));
  }
  finish(first, 0, second, 5);
}

/// G g: three taps to six points.
TARN_INLINE void filter_points(const v16 g[3], v16 u[6]) {
  const v16 ea = kNa * g[0] + kNa * kA2 * g[2], oa = kNa * kA * g[1];
  const v16 eb = kNb * g[0] + kNb * kB2 * g[2], ob = kNb * kB * g[1];
  u[0] = kN0 * g[0];
  u[1] = ea + oa;
  u[2] = ea - oa;
  u[3] = eb + ob;
  u[4] = eb - ob;
  u[5] = g[2];
}

/// A^T m: six points to four outputs.
TARN_INLINE void output_samples(const v16 m[6], v16 y[4]) {
  const v16 sa = m[1] + m[2], da = m[1] - m[2];
  const v16 sb = m[3] + m[4], db = m[3] - m[4];
  y[0] = m[0] + (sa + sb);
  y[1] = kA * da + kB * db;
  y[2] = kA2 * sa + kB2 * sb;
  y[3] = kA3 * da + (kB3 * db + m[5]);
}

/// H y: four gradient samples to six points (the scale 1/N is left to filter_taps).
TARN_INLINE void gradient_points(const v16 y[4], v16 u[6]) {
  const v16 ea = y[0] + kA2 * y[2], oa = kA * y[1] + kA3 * y[3];
  const v16 eb = y[0] + kB2 * y[2], ob = kB * y[1] + kB3 * y[3];
  u[0] = y[0];
  u[1] = ea + oa;
  u[2] = ea - oa;
  u[3] = eb + ob;
  u[4] = eb - ob;
  u[5] = y[3];
}

/// C^T m: six points to three filter taps.
TARN_INLINE void filter_taps(const v16 m[6], v16 w[3]) {
  const v16 sa = m[1] + m[2], da = m[1] - m[2];
  const v16 sb = m[3] + m[4], db = m[3] - m[4];
  w[0] = kN0 * m[0] + (kNa * sa + kNb * sb);
  w[1] = kNa * kA * da + kNb * kB * db;
  w[2] = kNa * kA2 * sa + (kNb * kB2 * sb + m[5]);
}

/// Applies a 1-d transform to the columns, then to the rows. load(r, s) gives the samples,
/// store(i, j, v) takes the results.
template <int kIn, int kOut, typename Transform, typename Load, typename Store>
TARN_INLINE void transform_2d(Transform transform, Load load, Store store) {
  v16 half[kOut][kIn];
#pragma GCC unroll 9
  for (int s = 0; s < kIn; ++s) {
    v16 in[kIn], out[kOut];
#pragma GCC unroll 9
    for (int r = 0; r < kIn; ++r) in[r] = load(r, s);
    transform(in, out);
#pragma GCC unroll 9
    for (int i = 0; i < kOut; ++i) half[i][s] = out[i];
  }
#pragma GCC unroll 9
  for (int i = 0; i < kOut; ++i) {
    v16 out[kOut];
    transform(half[i], out);
#pragma GCC unroll 9
    for (int j = 0; j < kOut; ++j) store(i, j, out[j]);
  }
}

}  // namespace tarn::cpu::winograd
