// winograd_tiles.h - cutting NHWC images into Winograd tiles and putting them back together.
//
// A tile is 4x4 pixels of the output's image and the pixels of the input under them; tiles are
// numbered through all images. Block buffers hold points x tiles x 64 channels, so that a block's
// working set stays in the L2 cache. A Scheme says how tiles become points; there is one for stride
// 1 (36 points, winograd_tiles.cpp) and one for stride 2 (81 points, winograd_strided.cpp). Pixels
// are f32 or bf16 (T below); points are always f32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "tarn/core/cpu/conv_shape.h"
#include "tarn/core/cpu/half_lanes.h"
#include "tarn/core/cpu/micro_gemm.h"
#include "tarn/core/cpu/winograd_transforms.h"

namespace tarn::cpu::winograd {

constexpr int64_t kTile = 4;        // pixels of the output's image per side
constexpr int64_t kFilterSide = 6;  // points of a filter per side, in both schemes
constexpr int64_t kFilters = kFilterSide * kFilterSide;
constexpr int64_t kBlock = 64;  // channels of a block buffer, at most

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// One line more than a power of two, lest the 36 points of a tile share cache sets.
constexpr int64_t point_stride(int64_t rows) {
  return rows * kBlock + kLanes;
}

/// Maps images [n, h, w, c] to [n, oh, ow, k], cut into tiles_h x tiles_w tiles each.
struct Geometry {
  int64_t n, h, w, c, oh, ow, k, pad_h, pad_w, tiles_h, tiles_w;

  explicit Geometry(const Conv2dShape& s)
      : n(s.n),
        h(s.h),
        w(s.w),
        c(s.c),
        oh(s.oh()),
        ow(s.ow()),
        k(s.k),
        pad_h(s.pad_h),
        pad_w(s.pad_w),
        tiles_h(ceil_div(oh, kTile)),
        tiles_w(ceil_div(ow, kTile)) {}

  int64_t tiles() const { return n * tiles_h * tiles_w; }
};

/// Walks over tiles: image and position of the tile's first pixel.
struct TileCursor {
  const Geometry& g;
  int64_t image, y, x;

  TileCursor(const Geometry& geometry, int64_t tile)
      : g(geometry),
        image(tile / (g.tiles_w * g.tiles_h)),
        y(tile / g.tiles_w % g.tiles_h * kTile),
        x(tile % g.tiles_w * kTile) {}
  void next() {
    x += kTile;
    if (x < g.tiles_w * kTile) return;
    x = 0;
    y += kTile;
    if (y < g.tiles_h * kTile) return;
    y = 0;
    ++image;
  }
};

template <typename T>
alignas(64) inline const T kZeros[kBlock] = {};

/// Pointers to a kSide x kSide patch of pixels with its corner at (y, x); those outside the image
/// point to `outside`.
template <int kSide, typename T>
TARN_INLINE void patch_pointers(T* base, int64_t height, int64_t width, int64_t channels,
                                int64_t image, int64_t y, int64_t x, T* outside,
                                T* pixels[kSide * kSide]) {
  for (int r = 0; r < kSide; ++r) {
    const bool row_inside = y + r >= 0 && y + r < height;
    for (int s = 0; s < kSide; ++s) {
      const bool inside = row_inside && x + s >= 0 && x + s < width;
      pixels[r * kSide + s] =
          inside ? base + ((image * height + y + r) * width + x + s) * channels : outside;
    }
  }
}

/// Runs f(channel, lanes) over groups of 16 channels; lanes is a constant 16, or the rest.
template <typename F>
TARN_INLINE void for_lanes(int64_t channels, F f) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) f(c, std::integral_constant<int64_t, kLanes>{});
  if (c < channels) f(c, channels - c);
}

template <typename T, typename Lanes>
TARN_INLINE v16 load_lanes(const T* p, Lanes lanes) {
  if constexpr (std::is_same_v<Lanes, int64_t>) {
    return load16_partial(p, lanes);
  } else {
    return load16(p);
  }
}

template <typename T, typename Lanes>
TARN_INLINE void store_lanes(T* p, v16 v, Lanes lanes) {
  if constexpr (std::is_same_v<Lanes, int64_t>) {
    store16_partial(p, v, lanes);
  } else {
    store16(p, v);
  }
}

/// A TilesToPoints of gy, packed as panels: `transform`(const v16 pixels[4], v16 points[kSide]).
template <int kSide, typename T, typename Transform>
TARN_INLINE void gradient_to_points(Transform transform, const Geometry& g, const T* gy,
                                    int64_t first, int64_t count, int64_t channels, float* out,
                                    int64_t stride) {
  TileCursor at(g, first);
  for (int64_t t = 0; t < count; ++t, at.next()) {
    const T* pixels[kTile * kTile];
    patch_pointers<kTile>(gy, g.oh, g.ow, g.k, at.image, at.y, at.x, kZeros<T>, pixels);
    for_lanes(channels, [&](int64_t c, auto lanes) {
      float* tile = out + (c / kPanel * count + t) * kPanel + c % kPanel;
      transform_2d<kTile, kSide>(
          transform,
          [&](int r, int s)
              TARN_LAMBDA_INLINE { return load_lanes(pixels[r * kTile + s] + c, lanes); },
          [&](int i, int j, v16 v)
              TARN_LAMBDA_INLINE { store16(tile + (i * kSide + j) * stride, v); });
    });
  }
}

/// Channels [0, channels) of `count` tiles from `first` to points, `stride` floats apart. `image`
/// points to the block's first channel.
template <typename T>
using TilesToPoints = void (*)(const Geometry& g, const T* image, int64_t first, int64_t count,
                               int64_t channels, float* points, int64_t stride);
/// Points [..][count][64] to pixels (plus bias if any); `bias` and `image` point to the block's
/// first channel.
template <typename T>
using PointsToTiles = void (*)(const Geometry& g, const float* points, int64_t stride,
                               int64_t first, int64_t count, int64_t channels, const T* bias,
                               T* image);

/// Where a filter tap lies: weights are read as w[out * out_stride + in * in_stride + tap], with
/// tap = 8 - tap when rotated by 180 degrees (backward data).
struct FilterView {
  const float* data;
  int64_t out_stride, in_stride;
  bool rotated;
};

/// Filters of `outs` x `ins` channels (at most 64 each), packed as panels:
/// u[36][kBlock / kPanel][ins][kPanel], points point_stride(kBlock) apart, panels kBlock * kPanel
/// apart.
using FiltersToPoints = void (*)(const FilterView& w, int64_t outs, int64_t ins, float* u);
/// Points m[36][ins][64 outs] to filter gradients gw[out * out_stride + in * 9 + tap], written.
using PointsToFilters = void (*)(const float* m, int64_t stride, int64_t outs, int64_t ins,
                                 float* gw, int64_t out_stride);

/// How one kind of convolution becomes products at points.
template <typename T>
struct Scheme {
  int64_t points;                         // of a tile
  const uint8_t* filter_of;               // which of the 36 filter points multiplies each point
  int64_t forward_tiles, gradient_tiles;  // tiles of a block
  TilesToPoints<T> input;                 // x[count][64] per point
  TilesToPoints<T> gradient;              // gy, packed as panels [2][count][32] per point
  PointsToTiles<T> output;                // y
  TilesToPoints<T> data_input;            // gy, for the gradient of x
  PointsToTiles<T> data_output;           // gx
  FiltersToPoints filters;
  PointsToFilters filter_gradient;
};

/// F(4x4, 3x3) for stride 1. T: float, bfloat16.
template <typename T>
Scheme<T> unit_scheme();
/// F(4x4, 3x3) of the two phases of a stride-2 convolution with padding 1.
template <typename T>
Scheme<T> strided_scheme();

}  // namespace tarn::cpu::winograd
