// conv_shape.h - the sizes of one 2-d convolution, as the CPU engines and their caches see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace tarn::cpu {

/// Sizes of a 2-d convolution. Activations are dense NHWC (channels_last), weights dense OIHW
/// [K, C / groups, KH, KW], bias [K]. dil = 1 is an ordinary, undilated kernel.
struct Conv2dShape {
  int64_t n = 0, c = 0, h = 0, w = 0;  // input
  int64_t k = 0, kh = 1, kw = 1;       // output channels, kernel
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_h = 0, pad_w = 0;  // zeros on both sides
  int64_t dil_h = 1, dil_w = 1;
  int64_t groups = 1;

  int64_t oh() const { return (h + 2 * pad_h - dil_h * (kh - 1) - 1) / stride_h + 1; }
  int64_t ow() const { return (w + 2 * pad_w - dil_w * (kw - 1) - 1) / stride_w + 1; }
  int64_t input_size() const { return n * c * h * w; }
  int64_t output_size() const { return n * k * oh() * ow(); }
  int64_t weight_size() const { return k * (c / groups) * kh * kw; }
  /// Multiply-adds of the direct algorithm.
  int64_t macs() const { return output_size() * (c / groups) * kh * kw; }

  bool operator==(const Conv2dShape&) const = default;
};

/// Mixes one value into a hash (the 64-bit finaliser of MurmurHash3).
inline size_t hash_mix(size_t seed, uint64_t value) {
  uint64_t h = (static_cast<uint64_t>(seed) ^ value) * 0xff51afd7ed558ccdULL;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return static_cast<size_t>(h ^ (h >> 33));
}

struct Conv2dShapeHash {
  size_t operator()(const Conv2dShape& s) const {
    size_t h = 0;
    for (int64_t v : {s.n, s.c, s.h, s.w, s.k, s.kh, s.kw, s.stride_h, s.stride_w, s.pad_h, s.pad_w,
                      s.dil_h, s.dil_w, s.groups}) {
      h = hash_mix(h, static_cast<uint64_t>(v));
    }
    return h;
  }
};

}  // namespace tarn::cpu
