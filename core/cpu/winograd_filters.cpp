// winograd_filters.cpp - filter taps between their plain layout and vectors of output channels.
#include "tarn/core/cpu/winograd_filters.h"

namespace tarn::cpu::winograd {

void load_taps(const FilterView& w, const float* from, int64_t outs, int64_t ins, float* taps) {
  const bool whole = outs == kLanes && ins == kLanes;
  if (whole && w.in_stride == kTaps) {  // a row holds 16 ins x 9 taps of one out
    for (int64_t b = 0; b < kTaps; ++b) {
      v16 r[kLanes];
      for (int64_t q = 0; q < kLanes; ++q) r[q] = load16(from + q * w.out_stride + b * kLanes);
      transpose16(r);
      for (int64_t q = 0; q < kLanes; ++q) store16(taps + (b * kLanes + q) * kLanes, r[q]);
    }
    return;
  }
  if (whole && w.out_stride == kTaps) {                  // a row holds 16 outs x 9 taps of one in
    alignas(64) float columns[kLanes * kTaps * kLanes];  // [out][tap][in]
    for (int64_t b = 0; b < kTaps; ++b) {
      v16 r[kLanes];
      for (int64_t q = 0; q < kLanes; ++q) r[q] = load16(from + q * w.in_stride + b * kLanes);
      transpose16(r);
      for (int64_t q = 0; q < kLanes; ++q) store16(columns + (b * kLanes + q) * kLanes, r[q]);
    }
    for (int64_t s = 0; s < kTaps; ++s) {
      v16 r[kLanes];
      for (int64_t q = 0; q < kLanes; ++q) r[q] = load16(columns + (q * kTaps + s) * kLanes);
      transpose16(r);
      for (int64_t q = 0; q < kLanes; ++q) store16(taps + (q * kTaps + s) * kLanes, r[q]);
    }
    return;
  }
  if (outs < kLanes) std::fill(taps, taps + kLanes * kTaps * kLanes, 0.0f);
  for (int64_t q = 0; q < ins; ++q) {
    for (int64_t p = 0; p < outs; ++p) {
      for (int64_t s = 0; s < kTaps; ++s) {
        taps[(q * kTaps + s) * kLanes + p] = from[p * w.out_stride + q * w.in_stride + s];
      }
    }
  }
}

void store_taps(const float* taps, int64_t outs, int64_t ins, float* gw, int64_t out_stride) {
  if (outs == kLanes && ins == kLanes) {
    for (int64_t b = 0; b < kTaps; ++b) {
      v16 r[kLanes];
      for (int64_t q = 0; q < kLanes; ++q) r[q] = load16(taps + (b * kLanes + q) * kLanes);
      transpose16(r);
      for (int64_t q = 0; q < kLanes; ++q) store16(gw + q * out_stride + b * kLanes, r[q]);
    }
    return;
  }
  for (int64_t p = 0; p < outs; ++p) {
    for (int64_t q = 0; q < ins * kTaps; ++q) gw[p * out_stride + q] = taps[q * kLanes + p];
  }
}

}  // namespace tarn::cpu::winograd
