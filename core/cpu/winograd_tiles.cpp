// winograd_tiles.cpp - the transforms of Winograd tiles, vectorised over channels.
#include "tarn/core/cpu/winograd_tiles.h"

namespace tarn::cpu::winograd {
namespace {

/// Runs f(channel, lanes) over groups of 16 channels, the last one possibly narrower.
template <typename F>
TARN_INLINE void for_lanes(int64_t channels, F f) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) f(c, std::integral_constant<int64_t, kLanes>{});
  if (c < channels) f(c, channels - c);
}

template <typename Lanes>
TARN_INLINE v16 load_lanes(const float* p, Lanes lanes) {
  if constexpr (std::is_same_v<Lanes, int64_t>) {
    return load16_partial(p, lanes);
  } else {
    return load16(p);
  }
}

template <typename Lanes>
TARN_INLINE void store_lanes(float* p, v16 v, Lanes lanes) {
  if constexpr (std::is_same_v<Lanes, int64_t>) {
    store16_partial(p, v, lanes);
  } else {
    store16(p, v);
  }
}

}  // namespace

void input_block(const Geometry& g, const float* x, int64_t first, int64_t count, int64_t channels,
                 float* out, int64_t stride) {
  TileCursor at(g, first);
  for (int64_t t = 0; t < count; ++t, at.next()) {
    const float* pixels[kPatch * kPatch];
    patch_pointers<kPatch>(x, g.h, g.w, g.c, at.image, at.y - g.pad_h, at.x - g.pad_w, kZeros,
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

void gradient_block(const Geometry& g, const float* gy, int64_t first, int64_t count,
                    int64_t channels, float* out, int64_t stride) {
  TileCursor at(g, first);
  for (int64_t t = 0; t < count; ++t, at.next()) {
    const float* pixels[kTile * kTile];
    patch_pointers<kTile>(gy, g.oh, g.ow, g.k, at.image, at.y, at.x, kZeros, pixels);
    for_lanes(channels, [&](int64_t c, auto lanes) {
      float* tile = out + (c / kPanel * count + t) * kPanel + c % kPanel;
      transform_2d<kTile, kPatch>(
          [](const v16* d, v16* v) TARN_LAMBDA_INLINE { gradient_points(d, v); },
          [&](int r, int s)
              TARN_LAMBDA_INLINE { return load_lanes(pixels[r * kTile + s] + c, lanes); },
          [&](int i, int j, v16 v)
              TARN_LAMBDA_INLINE { store16(tile + (i * kPatch + j) * stride, v); });
    });
  }
}

void output_block(const Geometry& g, const float* m, int64_t stride, int64_t first, int64_t count,
                  int64_t channels, const float* bias, float* y) {
  TileCursor at(g, first);
  float outside[kBlock];  // takes the outputs beyond the image's edge
  for (int64_t t = 0; t < count; ++t, at.next()) {
    float* pixels[kTile * kTile];
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
  constexpr int64_t kTaps = 9;
  constexpr int64_t kStride = point_stride(kBlock);
  alignas(64) float taps[kLanes * kTaps * kLanes];  // [in][tap][out]
  for (int64_t o = 0; o < outs; o += kLanes) {
    const int64_t on = std::min(kLanes, outs - o);
    for (int64_t i = 0; i < ins; i += kLanes) {
      const int64_t in = std::min(kLanes, ins - i);
      const float* from = w.data + o * w.out_stride + i * w.in_stride;
      if (on < kLanes) std::fill(taps, taps + kLanes * kTaps * kLanes, 0.0f);
      if (w.in_stride == kTaps && on == kLanes && in == kLanes) {
        for (int64_t b = 0; b < kTaps; ++b) {
          v16 r[kLanes];
          for (int64_t q = 0; q < kLanes; ++q) r[q] = load16(from + q * w.out_stride + b * kLanes);
          transpose16(r);
          for (int64_t q = 0; q < kLanes; ++q) store16(taps + (b * kLanes + q) * kLanes, r[q]);
        }
      } else {
        for (int64_t q = 0; q < in; ++q) {
          for (int64_t p = 0; p < on; ++p) {
            for (int64_t s = 0; s < kTaps; ++s) {
              taps[(q * kTaps + s) * kLanes + p] = from[p * w.out_stride + q * w.in_stride + s];
            }
          }
        }
      }
      float* panel = u + o / kPanel * (kBlock * kPanel) + o % kPanel + i * kPanel;
      for (int64_t q = 0; q < in; ++q) {
        const float* t = taps + q * kTaps * kLanes;
        transform_2d<3, kPatch>([](const v16* d, v16* v)
                                    TARN_LAMBDA_INLINE { filter_points(d, v); },
                                [&](int r, int s) TARN_LAMBDA_INLINE {
                                  const int tap = r * 3 + s;
                                  return load16(t + (w.rotated ? 8 - tap : tap) * kLanes);
                                },
                                [&](int a, int b, v16 v) TARN_LAMBDA_INLINE {
                                  store16(panel + (a * kPatch + b) * kStride + q * kPanel, v);
                                });
      }
    }
  }
}

void filter_gradient_block(const float* m, int64_t stride, int64_t outs, int64_t ins, float* gw,
                           int64_t out_stride) {
  constexpr int64_t kTaps = 9;
  alignas(64) float taps[kLanes * kTaps * kLanes];  // [in][tap][out]
  for (int64_t o = 0; o < outs; o += kLanes) {
    const int64_t on = std::min(kLanes, outs - o);
    for (int64_t i = 0; i < ins; i += kLanes) {
      const int64_t in = std::min(kLanes, ins - i);
      for (int64_t q = 0; q < in; ++q) {
        const float* point = m + (i + q) * kBlock + o;
        float* t = taps + q * kTaps * kLanes;
        transform_2d<kPatch, 3>(
            [](const v16* d, v16* v) TARN_LAMBDA_INLINE { filter_taps(d, v); },
            [&](int r, int s)
                TARN_LAMBDA_INLINE { return load16(point + (r * kPatch + s) * stride); },
            [&](int a, int b, v16 v) TARN_LAMBDA_INLINE { store16(t + (a * 3 + b) * kLanes, v); });
      }
      float* to = gw + o * out_stride + i * kTaps;
      if (on == kLanes && in == kLanes) {
        for (int64_t b = 0; b < kTaps; ++b) {
          v16 r[kLanes];
          for (int64_t q = 0; q < kLanes; ++q) r[q] = load16(taps + (b * kLanes + q) * kLanes);
          transpose16(r);
          for (int64_t q = 0; q < kLanes; ++q) store16(to + q * out_stride + b * kLanes, r[q]);
        }
      } else {
        for (int64_t p = 0; p < on; ++p) {
          for (int64_t q = 0; q < in * kTaps; ++q) to[p * out_stride + q] = taps[q * kLanes + p];
        }
      }
    }
  }
}

}  // namespace tarn::cpu::winograd
