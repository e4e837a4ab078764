// winograd_tiles.cpp - the transforms of stride-1 tiles, vectorised over channels.
#include "tarn/core/cpu/winograd_tiles.h"

#include "tarn/core/cpu/winograd_filters.h"

namespace tarn::cpu::winograd {
namespace {

constexpr int64_t kPatch = 6;    // inputs per side of a tile
constexpr int64_t kPoints = 36;  // kPatch * kPatch

template <typename T>
void input_block(const Geometry& g, const T* x, int64_t first, int64_t count, int64_t channels,
                 float* out, int64_t stride) {
  TileCursor at(g, first);
  for (int64_t t = 0; t < count; ++t, at.next()) {
    const T* pixels[kPatch * kPatch];
    patch_pointers<kPatch>(x, g.h, g.w, g.c, at.image, at.y - g.pad_h, at.x - g.pad_w, kZeros<T>,
                           pixels);
    float* tile = out + t * kBlock;
    for_lanes(channels, [&](int64_t c, auto lanes) {
      input_points_2d(
          [&](int r, int s)
              TARN_LAMBDA_INLINE { return load_lanes(pixels[r * kPatch + s] + c, lanes); },
          [&](int i, int j, v16 v)
              TARN_LAMBDA_INLINE { store16(tile + (i * kPatch + j) * stride + c, v); });
    });
  }
}

template <typename T>
void gradient_block(const Geometry& g, const T* gy, int64_t first, int64_t count, int64_t channels,
                    float* out, int64_t stride) {
  gradient_to_points<kPatch>([](const v16* d, v16* v) TARN_LAMBDA_INLINE { gradient_points(d, v); },
                             g, gy, first, count, channels, out, stride);
}

template <typename T>
void output_block(const Geometry& g, const float* m, int64_t stride, int64_t first, int64_t count,
                  int64_t channels, const T* bias, T* y) {
  TileCursor at(g, first);
  T outside[kBlock];  // takes the outputs beyond the image's edge
  for (int64_t t = 0; t < count; ++t, at.next()) {
    T* pixels[kTile * kTile];
    patch_pointers<kTile>(y, g.oh, g.ow, g.k, at.image, at.y, at.x, outside, pixels);
    const float* tile = m + t * kBlock;
    for_lanes(channels, [&](int64_t c, auto lanes) {
      const v16 b = bias != nullptr ? load_lanes(bias + c, lanes) : v16{};
      transform_2d<kPatch, kTile>(
          [](const v16* d, v16* v) TARN_LAMBDA_INLINE { output_samples(d, v); },
          [&](int r, int s)
              TARN_LAMBDA_INLINE { return load16(tile + (r * kPatch + s) * stride + c); },
          [&](int i, int j, v16 v)
              TARN_LAMBDA_INLINE { store_lanes(pixels[i * kTile + j] + c, v + b, lanes); });
    });
  }
}

void filter_block(const FilterView& w, int64_t outs, int64_t ins, float* u) {
  filters_to_points([](const v16* g, v16* v) TARN_LAMBDA_INLINE { filter_points(g, v); }, w, outs,
                    ins, u);
}

void filter_gradient_block(const float* m, int64_t stride, int64_t outs, int64_t ins, float* gw,
                           int64_t out_stride) {
  points_to_filters([](const v16* p, v16* v) TARN_LAMBDA_INLINE { filter_taps(p, v); }, m, stride,
                    outs, ins, gw, out_stride);
}

constexpr auto kOwnFilter = [] {
  std::array<uint8_t, kPoints> of{};
  for (size_t i = 0; i < of.size(); ++i) of[i] = static_cast<uint8_t>(i);
  return of;
}();

}  // namespace

// Three and two register blocks of tiles: with 64 channels the working set is some 1.3 MiB.
template <typename T>
Scheme<T> unit_scheme() {
  return {kPoints,
          kOwnFilter.data(),
          42,
          28,
          input_block<T>,
          gradient_block<T>,
          output_block<T>,
          input_block<T>,
          output_block<T>,
          filter_block,
          filter_gradient_block};
}

template Scheme<float> unit_scheme<float>();
template Scheme<bfloat16> unit_scheme<bfloat16>();

}  // namespace tarn::cpu::winograd
