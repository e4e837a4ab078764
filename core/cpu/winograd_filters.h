// winograd_filters.h - filters to Winograd points and back, for any 1-d transform of three taps.
#pragma once

#include "tarn/core/cpu/winograd_tiles.h"

namespace tarn::cpu::winograd {

constexpr int64_t kTaps = 9;

/// 16 x 16 filters (fewer at the edges) to taps[in][tap][out], zeros where there is no out.
void load_taps(const FilterView& w, const float* from, int64_t outs, int64_t ins, float* taps);
/// The reverse: taps[in][tap][out] to gw[out * out_stride + in * 9 + tap].
void store_taps(const float* taps, int64_t outs, int64_t ins, float* gw, int64_t out_stride);

/// FiltersToPoints with `transform`(const v16 taps[3], v16 points[6]).
template <typename Transform>
TARN_INLINE void filters_to_points(Transform transform, const FilterView& w, int64_t outs,
                                   int64_t ins, float* u) {
  constexpr int64_t kStride = point_stride(kBlock);
  alignas(64) float taps[kLanes * kTaps * kLanes];
  for (int64_t o = 0; o < outs; o += kLanes) {
    for (int64_t i = 0; i < ins; i += kLanes) {
      const int64_t on = std::min(kLanes, outs - o), in = std::min(kLanes, ins - i);
      load_taps(w, w.data + o * w.out_stride + i * w.in_stride, on, in, taps);
      float* panel = u + o / kPanel * (kBlock * kPanel) + o % kPanel + i * kPanel;
      for (int64_t q = 0; q < in; ++q) {
        const float* t = taps + q * kTaps * kLanes;
        transform_2d<3, kFilterSide>(
            transform,
            [&](int r, int s) TARN_LAMBDA_INLINE {
              const int tap = r * 3 + s;
              return load16(t + (w.rotated ? 8 - tap : tap) * kLanes);
            },
            [&](int a, int b, v16 v) TARN_LAMBDA_INLINE {
              store16(panel + (a * kFilterSide + b) * kStride + q * kPanel, v);
            });
      }
    }
  }
}

/// PointsToFilters with `transform`(const v16 points[6], v16 taps[3]).
template <typename Transform>
TARN_INLINE void points_to_filters(Transform transform, const float* m, int64_t stride,
                                   int64_t outs, int64_t ins, float* gw, int64_t out_stride) {
  alignas(64) float taps[kLanes * kTaps * kLanes];
  for (int64_t o = 0; o < outs; o += kLanes) {
    for (int64_t i = 0; i < ins; i += kLanes) {
      const int64_t on = std::min(kLanes, outs - o), in = std::min(kLanes, ins - i);
      for (int64_t q = 0; q < in; ++q) {
        const float* point = m + (i + q) * kBlock + o;
        float* t = taps + q * kTaps * kLanes;
        transform_2d<kFilterSide, 3>(
            transform,
            [&](int r, int s)
                TARN_LAMBDA_INLINE { return load16(point + (r * kFilterSide + s) * stride); },
            [&](int a, int b, v16 v) TARN_LAMBDA_INLINE { store16(t + (a * 3 + b) * kLanes, v); });
      }
      store_taps(taps, on, in, gw + o * out_stride + i * kTaps, out_stride);
    }
  }
}

}  // namespace tarn::cpu::winograd
