// winograd_strided.cpp - 3x3 convolutions of stride 2 and padding 1 by Winograd, in two phases.
//
// Along one dimension y[i] = w0 e[i] + w2 e[i+1] + w1 o[i] with e[j] = x[2j - 1], o[j] = x[2j]: a
// 2-tap and a 1-tap convolution of stride 1. Four outputs of the first take five products, F(4, 2)
// at the points 0, 1/2, -1, 2, infinity; of the second four: 9 instead of 12, and 81 instead of 144
// in two dimensions. The error is that of the direct sum (measured: 5e-7 against 4e-7).
// The gradient of x has the same form: gx[2j + 1] = w2 gy[j] + w0 gy[j + 1], gx[2j] = w1 gy[j].
#include "tarn/core/cpu/winograd_filters.h"

namespace tarn::cpu::winograd {
namespace {

constexpr int kEven = 5;           // points of the 2-tap phase; the 1-tap phase has kTile
constexpr int64_t kSide = 9;       // points per side of a tile
constexpr int64_t kPatch = 9;      // pixels of x under a tile, per side
constexpr int64_t kDataPatch = 5;  // pixels of gy for a tile of gx, per side
constexpr int64_t kDataTile = 8;   // pixels of gx per side
// 1 / prod(p - q) over the other finite points, for p = 1/2, -1, 2 (it is 1 for p = 0).
constexpr float kN1 = -8.0f / 9, kN2 = -2.0f / 9, kN3 = 1.0f / 9;

/// B^T d: five samples to five points.
TARN_INLINE void even_points(v16 d0, v16 d1, v16 d2, v16 d3, v16 d4, v16* v) {
  v[0] = (d0 + d3) - 1.5f * (d1 + d2);
  v[1] = (d3 - d2) - 2.0f * d1;
  v[2] = (d1 + d3) - 2.5f * d2;
  v[3] = d3 + 0.5f * (d2 - d1);
  v[4] = (d1 + d4) - 1.5f * (d2 + d3);
}

/// A^T m: five points to four samples.
TARN_INLINE void even_samples(const v16* m, v16* y) {
  y[0] = (m[0] + m[1]) + (m[2] + m[3]);
  y[1] = (0.5f * m[1] - m[2]) + 2.0f * m[3];
  y[2] = (0.25f * m[1] + m[2]) + 4.0f * m[3];
  y[3] = (0.125f * m[1] - m[2]) + (8.0f * m[3] + m[4]);
}

/// Nine pixels of x: the odd-numbered are o, the others e.
TARN_INLINE void input_points9(const v16* d, v16* v) {
  even_points(d[0], d[2], d[4], d[6], d[8], v);
  for (int i = 0; i < kTile; ++i) v[kEven + i] = d[2 * i + 1];
}

/// Five pixels of gy, for gx.
TARN_INLINE void data_points(const v16* d, v16* v) {
  even_points(d[0], d[1], d[2], d[3], d[4], v);
  for (int i = 0; i < kTile; ++i) v[kEven + i] = d[i];
}

TARN_INLINE void filter_points6(const v16* g, v16* u) {
  u[0] = g[0];
  u[1] = kN1 * (g[0] + 0.5f * g[2]);
  u[2] = kN2 * (g[0] - g[2]);
  u[3] = kN3 * (g[0] + 2.0f * g[2]);
  u[4] = g[2];
  u[5] = g[1];
}

/// Nine points to four outputs: both phases add up.
TARN_INLINE void output_samples4(const v16* m, v16* y) {
  even_samples(m, y);
  for (int i = 0; i < kTile; ++i) y[i] = y[i] + m[kEven + i];
}

/// Nine points to eight pixels of gx: the phases alternate.
TARN_INLINE void data_samples(const v16* m, v16* gx) {
  v16 even[kTile];
  even_samples(m, even);
  for (int i = 0; i < kTile; ++i) {
    gx[2 * i] = m[kEven + i];
    gx[2 * i + 1] = even[i];
  }
}

/// H y: four pixels of gy to nine points (the scale is left to filter_taps3).
TARN_INLINE void gradient_points9(const v16* y, v16* u) {
  u[0] = y[0];
  u[1] = (y[0] + 0.5f * y[1]) + (0.25f * y[2] + 0.125f * y[3]);
  u[2] = (y[0] + y[2]) - (y[1] + y[3]);
  u[3] = (y[0] + 2.0f * y[1]) + (4.0f * y[2] + 8.0f * y[3]);
  u[4] = y[3];
  for (int i = 0; i < kTile; ++i) u[kEven + i] = y[i];
}

TARN_INLINE void filter_taps3(const v16* m, v16* w) {
  w[0] = (m[0] + kN1 * m[1]) + (kN2 * m[2] + kN3 * m[3]);
  w[1] = m[5];
  w[2] = (0.5f * kN1 * m[1] - kN2 * m[2]) + (2.0f * kN3 * m[3] + m[4]);
}

/// Patches of kSize x kSize pixels from (2y - 1, 2x - 1) or (y, x) on to points.
template <int kSize, typename T, typename Transform>
TARN_INLINE void to_points(Transform transform, const Geometry& g, bool data, const T* image,
                           int64_t first, int64_t count, int64_t channels, float* out,
                           int64_t stride) {
  TileCursor at(g, first);
  for (int64_t t = 0; t < count; ++t, at.next()) {
    const T* pixels[kSize * kSize];
    if (data) {
      patch_pointers<kSize>(image, g.oh, g.ow, g.k, at.image, at.y, at.x, kZeros<T>, pixels);
    } else {
      patch_pointers<kSize>(image, g.h, g.w, g.c, at.image, 2 * at.y - 1, 2 * at.x - 1, kZeros<T>,
                            pixels);
    }
    float* tile = out + t * kBlock;
    for_lanes(channels, [&](int64_t c, auto lanes) {
      transform_2d<kSize, kSide>(
          transform,
          [&](int r, int s)
              TARN_LAMBDA_INLINE { return load_lanes(pixels[r * kSize + s] + c, lanes); },
          [&](int i, int j, v16 v)
              TARN_LAMBDA_INLINE { store16(tile + (i * kSide + j) * stride + c, v); });
    });
  }
}

/// Points to kSize x kSize pixels of y or gx.
template <int kSize, typename T, typename Transform>
TARN_INLINE void to_pixels(Transform transform, const Geometry& g, bool data, const float* m,
                           int64_t stride, int64_t first, int64_t count, int64_t channels,
                           const T* bias, T* image) {
  TileCursor at(g, first);
  T outside[kBlock];  // takes the pixels beyond the image's edge
  for (int64_t t = 0; t < count; ++t, at.next()) {
    T* pixels[kSize * kSize];
    if (data) {
      patch_pointers<kSize>(image, g.h, g.w, g.c, at.image, 2 * at.y, 2 * at.x, outside, pixels);
    } else {
      patch_pointers<kSize>(image, g.oh, g.ow, g.k, at.image, at.y, at.x, outside, pixels);
    }
    const float* tile = m + t * kBlock;
    for_lanes(channels, [&](int64_t c, auto lanes) {
      const v16 b = bias != nullptr ? load_lanes(bias + c, lanes) : v16{};
      transform_2d<kSide, kSize>(
          transform,
          [&](int r, int s)
              TARN_LAMBDA_INLINE { return load16(tile + (r * kSide + s) * stride + c); },
          [&](int i, int j, v16 v)
              TARN_LAMBDA_INLINE { store_lanes(pixels[i * kSize + j] + c, v + b, lanes); });
    });
  }
}

template <typename T>
void input_block(const Geometry& g, const T* x, int64_t first, int64_t count, int64_t channels,
                 float* out, int64_t stride) {
  to_points<kPatch>([](const v16* d, v16* v) TARN_LAMBDA_INLINE { input_points9(d, v); }, g, false,
                    x, first, count, channels, out, stride);
}

template <typename T>
void data_input_block(const Geometry& g, const T* gy, int64_t first, int64_t count,
                      int64_t channels, float* out, int64_t stride) {
  to_points<kDataPatch>([](const v16* d, v16* v) TARN_LAMBDA_INLINE { data_points(d, v); }, g, true,
                        gy, first, count, channels, out, stride);
}

template <typename T>
void gradient_block(const Geometry& g, const T* gy, int64_t first, int64_t count, int64_t channels,
                    float* out, int64_t stride) {
  gradient_to_points<kSide>([](const v16* d, v16* v) TARN_LAMBDA_INLINE { gradient_points9(d, v); },
                            g, gy, first, count, channels, out, stride);
}

template <typename T>
void output_block(const Geometry& g, const float* m, int64_t stride, int64_t first, int64_t count,
                  int64_t channels, const T* bias, T* y) {
  to_pixels<kTile>([](const v16* p, v16* v) TARN_LAMBDA_INLINE { output_samples4(p, v); }, g, false,
                   m, stride, first, count, channels, bias, y);
}

template <typename T>
void data_output_block(const Geometry& g, const float* m, int64_t stride, int64_t first,
                       int64_t count, int64_t channels, const T* bias, T* gx) {
  to_pixels<kDataTile>([](const v16* p, v16* v) TARN_LAMBDA_INLINE { data_samples(p, v); }, g, true,
                       m, stride, first, count, channels, bias, gx);
}

void filter_block(const FilterView& w, int64_t outs, int64_t ins, float* u) {
  filters_to_points([](const v16* g, v16* v) TARN_LAMBDA_INLINE { filter_points6(g, v); }, w, outs,
                    ins, u);
}

void filter_gradient_block(const float* m, int64_t stride, int64_t outs, int64_t ins, float* gw,
                           int64_t out_stride) {
  points_to_filters([](const v16* p, v16* v) TARN_LAMBDA_INLINE { filter_taps3(p, v); }, m, stride,
                    outs, ins, gw, out_stride);
}

/// All points of the 1-tap phase share one filter point, the last.
constexpr auto kFilterOf = [] {
  std::array<uint8_t, kSide * kSide> of{};
  for (int64_t i = 0; i < kSide; ++i) {
    for (int64_t j = 0; j < kSide; ++j) {
      of[static_cast<size_t>(i * kSide + j)] = static_cast<uint8_t>(
          std::min<int64_t>(i, kEven) * kFilterSide + std::min<int64_t>(j, kEven));
    }
  }
  return of;
}();

}  // namespace

template <typename T>
Scheme<T> strided_scheme() {
  return {kSide * kSide,
          kFilterOf.data(),
          14,
          14,
          input_block<T>,
          gradient_block<T>,
          output_block<T>,
          data_input_block<T>,
          data_output_block<T>,
          filter_block,
          filter_gradient_block};
}

template Scheme<float> strided_scheme<float>();
template Scheme<bfloat16> strided_scheme<bfloat16>();

}  // namespace tarn::cpu::winograd
