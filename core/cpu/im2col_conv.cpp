// im2col_conv.cpp - unfolds patches to rows [C/groups, KH, KW] and multiplies with the weights.
#include "tarn/core/cpu/im2col_conv.h"

#include <algorithm>
#include <memory>

#include "tarn/core/cpu/gemm.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kPatchElements = 1 << 18;  // of one block of unfolded rows
constexpr int64_t kGrainElements = 1 << 15;  // per thread at least: less is not worth waking it

/// Sizes within one group, and offsets into the tensors.
struct Group {
  int64_t channels, filters, taps, columns;
  explicit Group(const Conv2dShape& s)
      : channels(s.c / s.groups),
        filters(s.k / s.groups),
        taps(s.kh * s.kw),
        columns(channels * taps) {}
};

template <typename T>
MatmulCall product(int64_t m, int64_t n, int64_t k) {
  MatmulCall call;
  call.dtype = dtype_of<T>;
  call.m = m;
  call.n = n;
  call.k = k;
  return call;
}

/// Rows [first, first + count) of output pixels of one image to col[count][C/groups, KH, KW].
/// `x` points to the image's first pixel and the group's first channel.
template <typename T>
void unfold(const Conv2dShape& s, const T* x, int64_t first, int64_t count, T* col) {
  const Group g(s);
  const int64_t ow = s.ow();
  parallel_for(count, 1 + kGrainElements / g.columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t oy = (first + row) / ow, ox = (first + row) % ow;
      for (int64_t r = 0; r < s.kh; ++r) {
        const int64_t iy = oy * s.stride_h - s.pad_h + r * s.dil_h;
        for (int64_t q = 0; q < s.kw; ++q) {
          const int64_t ix = ox * s.stride_w - s.pad_w + q * s.dil_w;
          const bool inside = iy >= 0 && iy < s.h && ix >= 0 && ix < s.w;
          const T* pixel = x + (iy * s.w + ix) * s.c;
          T* to = col + row * g.columns + r * s.kw + q;
          for (int64_t c = 0; c < g.channels; ++c) to[c * g.taps] = inside ? pixel[c] : T(0);
        }
      }
    }
  });
}

/// Output position of input position i under one tap, or -1.
int64_t output_index(int64_t i, int64_t tap, int64_t pad, int64_t dilation, int64_t stride,
                     int64_t size) {
  const int64_t at = i + pad - tap * dilation;
  return at >= 0 && at % stride == 0 && at / stride < size ? at / stride : -1;
}

/// Gathers the gradients of unfolded patches, col[OH * OW][C/groups, KH, KW], into one image and
/// group of gx.
template <typename T>
void fold(const Conv2dShape& s, const T* col, T* gx) {
  const Group g(s);
  const int64_t oh = s.oh(), ow = s.ow();
  parallel_for(s.h * s.w, 1 + kGrainElements / g.columns, [&](int64_t begin, int64_t end) {
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      T* to = gx + pixel * s.c;
      std::fill(to, to + g.channels, T(0));
      for (int64_t r = 0; r < s.kh; ++r) {
        const int64_t oy = output_index(pixel / s.w, r, s.pad_h, s.dil_h, s.stride_h, oh);
        if (oy < 0) continue;
        for (int64_t q = 0; q < s.kw; ++q) {
          const int64_t ox = output_index(pixel % s.w, q, s.pad_w, s.dil_w, s.stride_w, ow);
          if (ox < 0) continue;
          const T* from = col + (oy * ow + ox) * g.columns + r * s.kw + q;
          for (int64_t c = 0; c < g.channels; ++c) to[c] += from[c * g.taps];
        }
      }
    }
  });
}

/// Calls f(image, group, first output pixel, count, col) with blocks of unfolded patches.
template <typename T, typename F>
void for_unfolded(const Conv2dShape& s, const T* x, F f) {
  const Group g(s);
  const int64_t pixels = s.oh() * s.ow();
  const int64_t block = std::clamp<int64_t>(kPatchElements / g.columns, 1, pixels);
  const auto col = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(block * g.columns));
  for (int64_t image = 0; image < s.n; ++image) {
    for (int64_t group = 0; group < s.groups; ++group) {
      for (int64_t first = 0; first < pixels; first += block) {
        const int64_t count = std::min(block, pixels - first);
        unfold(s, x + image * s.h * s.w * s.c + group * g.channels, first, count, col.get());
        f(image, group, first, count, col.get());
      }
    }
  }
}

}  // namespace

template <typename T>
void im2col_forward(const Conv2dShape& s, const T* x, const T* w, const T* bias, T* y) {
  const Group g(s);
  const int64_t pixels = s.oh() * s.ow();
  for_unfolded(s, x, [&](int64_t image, int64_t group, int64_t first, int64_t count, const T* col) {
    MatmulCall call = product<T>(count, g.filters, g.columns);
    call.a = col;
    call.a_row = g.columns;
    call.b = w + group * g.filters * g.columns;
    call.b_row = 1;
    call.b_col = g.columns;
    call.c = y + (image * pixels + first) * s.k + group * g.filters;
    call.c_row = s.k;
    call.bias = bias != nullptr ? bias + group * g.filters : nullptr;
    gemm(call);
  });
}

template <typename T>
void im2col_backward_data(const Conv2dShape& s, const T* gy, const T* w, T* gx) {
  const Group g(s);
  const int64_t pixels = s.oh() * s.ow();
  const auto col = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(pixels * g.columns));
  for (int64_t image = 0; image < s.n; ++image) {
    for (int64_t group = 0; group < s.groups; ++group) {
      MatmulCall call = product<T>(pixels, g.columns, g.filters);
      call.a = gy + image * pixels * s.k + group * g.filters;
      call.a_row = s.k;
      call.b = w + group * g.filters * g.columns;
      call.b_row = g.columns;
      call.c = col.get();
      call.c_row = g.columns;
      gemm(call);
      fold(s, col.get(), gx + image * s.h * s.w * s.c + group * g.channels);
    }
  }
}

template <typename T>
void im2col_backward_weights(const Conv2dShape& s, const T* x, const T* gy, T* gw) {
  const Group g(s);
  const int64_t pixels = s.oh() * s.ow();
  for_unfolded(s, x, [&](int64_t image, int64_t group, int64_t first, int64_t count, const T* col) {
    MatmulCall call = product<T>(g.filters, g.columns, count);
    call.a = gy + (image * pixels + first) * s.k + group * g.filters;
    call.a_row = 1;
    call.a_col = s.k;
    call.b = col;
    call.b_row = g.columns;
    call.c = gw + group * g.filters * g.columns;
    call.c_row = g.columns;
    call.beta = image > 0 || first > 0 ? 1 : 0;
    gemm(call);
  });
}

template void im2col_forward(const Conv2dShape&, const float*, const float*, const float*, float*);
template void im2col_forward(const Conv2dShape&, const double*, const double*, const double*,
                             double*);
template void im2col_backward_data(const Conv2dShape&, const float*, const float*, float*);
template void im2col_backward_data(const Conv2dShape&, const double*, const double*, double*);
template void im2col_backward_weights(const Conv2dShape&, const float*, const float*, float*);
template void im2col_backward_weights(const Conv2dShape&, const double*, const double*, double*);

}  // namespace tarn::cpu
