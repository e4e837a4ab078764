// winograd_tiles.h - cutting NHWC images into Winograd tiles and putting them back together.
//
// A tile is 4x4 outputs and the 6x6 inputs under them; tiles are numbered through all images. Block
// buffers hold 36 points x tiles x 64 channels, so that a block's working set stays in the L2
// cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tarn/core/cpu/conv_shape.h"
#include "tarn/core/cpu/micro_gemm.h"
#include "tarn/core/cpu/winograd_transforms.h"

namespace tarn::cpu::winograd {

constexpr int64_t kTile = 4;     // outputs per side
constexpr int64_t kPatch = 6;    // inputs per side
constexpr int64_t kPoints = 36;  // kPatch * kPatch
constexpr int64_t kBlock = 64;   // channels of a block buffer, at most

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// One line more than a power of two, lest the 36 points of a tile share cache sets.
constexpr int64_t point_stride(int64_t rows) {
  return rows * kBlock + kLanes;
}
constexpr int64_t buffer_size(int64_t rows) {
  return kPoints * point_stride(rows);
}

/// The stride-1 3x3 convolution that maps [n, h, w, c] to [n, oh, ow, k].
struct Geometry {
  int64_t n, h, w, c, oh, ow, k, pad_h, pad_w;

  explicit Geometry(const Conv2dShape& s)
      : n(s.n),
        h(s.h),
        w(s.w),
        c(s.c),
        oh(s.oh()),
        ow(s.ow()),
        k(s.k),
        pad_h(s.pad_h),
        pad_w(s.pad_w) {}

  /// The convolution that computes the input's gradient from the output's.
  Geometry transposed() const {
    Geometry t = *this;
    std::swap(t.h, t.oh);
    std::swap(t.w, t.ow);
    std::swap(t.c, t.k);
    t.pad_h = 2 - pad_h;
    t.pad_w = 2 - pad_w;
    return t;
  }
  int64_t tiles_h() const { return ceil_div(oh, kTile); }
  int64_t tiles_w() const { return ceil_div(ow, kTile); }
  int64_t tiles() const { return n * tiles_h() * tiles_w(); }
};

/// Walks over tiles: image and position of the tile's first output.
struct TileCursor {
  const Geometry& g;
  int64_t image, y, x;

  TileCursor(const Geometry& geometry, int64_t tile) : g(geometry) {
    const int64_t tw = g.tiles_w(), th = g.tiles_h();
    image = tile / (tw * th);
    y = tile / tw % th * kTile;
    x = tile % tw * kTile;
  }
  void next() {
    x += kTile;
    if (x < g.ow) return;
    x = 0;
    y += kTile;
    if (y < g.oh) return;
    y = 0;
    ++image;
  }
};

alignas(64) inline constexpr float kZeros[kBlock] = {};

/// Pointers to a kSide x kSide patch of pixels with its corner at (y, x); those outside the image
/// point to `outside`.
template <int kSide, typename Float>
TARN_INLINE void patch_pointers(Float* base, int64_t height, int64_t width, int64_t channels,
                                int64_t image, int64_t y, int64_t x, Float* outside,
                                Float* pixels[kSide * kSide]) {
  for (int r = 0; r < kSide; ++r) {
    const bool row_inside = y + r >= 0 && y + r < height;
    for (int s = 0; s < kSide; ++s) {
      const bool inside = row_inside && x + s >= 0 && x + s < width;
      pixels[r * kSide + s] =
          inside ? base + ((image * height + y + r) * width + x + s) * channels : outside;
    }
  }
}

/// Channels [0, channels) of `count` tiles from `first` to points:
/// out[36][count][64], points `stride` floats apart. `x` already points to the block's first
/// channel.
void input_block(const Geometry& g, const float* x, int64_t first, int64_t count, int64_t channels,
                 float* out, int64_t stride);

/// The same for tiles of the output's gradient, packed as panels: out[36][2][count][32].
void gradient_block(const Geometry& g, const float* gy, int64_t first, int64_t count,
                    int64_t channels, float* out, int64_t stride);

/// Points m[36][count][64] to outputs y (plus bias if any). `y` and `bias` point to the block's
/// first channel.
void output_block(const Geometry& g, const float* m, int64_t stride, int64_t first, int64_t count,
                  int64_t channels, const float* bias, float* y);

/// Where a filter tap lies: weights are read as w[out * out_stride + in * in_stride + tap], with
/// tap = 8 - tap when rotated by 180 degrees (backward data).
struct FilterView {
  const float* data;
  int64_t out_stride, in_stride;
  bool rotated;
};

/// Filters of `outs` x `ins` channels (at most 64 each), packed as panels:
/// u[36][2][ins][32], points point_stride(kBlock) apart, panels kBlock * kPanel apart.
void filter_block(const FilterView& w, int64_t outs, int64_t ins, float* u);

/// Points m[36][ins][64 outs] to filter gradients gw[out * out_stride + in * 9 + tap], written.
void filter_gradient_block(const float* m, int64_t stride, int64_t outs, int64_t ins, float* gw,
                           int64_t out_stride);

}  // namespace tarn::cpu::winograd
