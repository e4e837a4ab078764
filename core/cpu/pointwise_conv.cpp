// pointwise_conv.cpp - the three products of a 1x1 convolution.
#include "tarn/core/cpu/pointwise_conv.h"

#include <cstring>

#include "tarn/core/cpu/matmul_dispatch.h"
#include "tarn/core/cpu/scratch.h"
#include "tarn/core/parallel.h"

namespace tarn::cpu {
namespace {

constexpr int64_t kRowGrain = 4;  // image rows per thread at least

bool is_strided(const Conv2dShape& s) {
  return s.stride_h != 1 || s.stride_w != 1;
}

size_t pixel_bytes(const Conv2dShape& s, DType dtype) {
  return static_cast<size_t>(s.c * item_size(dtype));
}

int64_t pixels(const Conv2dShape& s) {
  return s.n * s.oh() * s.ow();
}

/// Room for the input pixels in use, [pixels, C].
char* strided_pixels(const Conv2dShape& s, DType dtype) {
  return static_cast<char*>(
      scratch(ScratchSlot::kPack, static_cast<size_t>(pixels(s)) * pixel_bytes(s, dtype)));
}

/// The input pixels in use as a dense matrix [pixels, C].
const void* gather(const Conv2dShape& s, DType dtype, const void* x) {
  if (!is_strided(s)) return x;
  const int64_t oh = s.oh(), ow = s.ow();
  const size_t bytes = pixel_bytes(s, dtype);
  const char* from = static_cast<const char*>(x);
  char* to = strided_pixels(s, dtype);
  parallel_for(s.n * oh, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t source = (row / oh * s.h + row % oh * s.stride_h) * s.w;
      for (int64_t ox = 0; ox < ow; ++ox) {
        std::memcpy(to + static_cast<size_t>(row * ow + ox) * bytes,
                    from + static_cast<size_t>(source + ox * s.stride_w) * bytes, bytes);
      }
    }
  });
  return to;
}

/// Spreads a dense matrix [pixels, C] over gx, zeros between.
void scatter(const Conv2dShape& s, DType dtype, const char* from, void* gx) {
  const int64_t oh = s.oh(), ow = s.ow();
  const size_t bytes = pixel_bytes(s, dtype);
  char* to = static_cast<char*>(gx);
  parallel_for(s.n * s.h, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t image = row / s.h, y = row % s.h;
      char* line = to + static_cast<size_t>(row * s.w) * bytes;
      if (y % s.stride_h != 0 || y / s.stride_h >= oh) {
        std::memset(line, 0, static_cast<size_t>(s.w) * bytes);
        continue;
      }
      const int64_t source = (image * oh + y / s.stride_h) * ow;
      for (int64_t x = 0; x < s.w; ++x) {
        char* pixel = line + static_cast<size_t>(x) * bytes;
        if (x % s.stride_w == 0 && x / s.stride_w < ow) {
          std::memcpy(pixel, from + static_cast<size_t>(source + x / s.stride_w) * bytes, bytes);
        } else {
          std::memset(pixel, 0, bytes);
        }
      }
    }
  });
}

}  // namespace

bool pointwise_applies(const Conv2dShape& s) {
  return s.kh == 1 && s.kw == 1 && s.pad_h == 0 && s.pad_w == 0 && s.groups == 1;
}

void pointwise_forward(const Conv2dShape& s, DType dtype, const void* x, const void* w,
                       const void* bias, void* y) {
  MatmulCall call;  // y[pixels, K] = x[pixels, C] w[K, C]^T
  call.dtype = dtype;
  call.m = pixels(s), call.n = s.k, call.k = s.c;
  call.a = gather(s, dtype, x), call.a_row = s.c;
  call.b = w, call.b_row = 1, call.b_col = s.c;
  call.c = y, call.c_row = s.k;
  call.bias = bias;
  matmul(call);
}

void pointwise_backward_data(const Conv2dShape& s, DType dtype, const void* gy, const void* w,
                             void* gx) {
  MatmulCall call;  // gx[pixels, C] = gy[pixels, K] w[K, C]
  call.dtype = dtype;
  call.m = pixels(s), call.n = s.c, call.k = s.k;
  call.a = gy, call.a_row = s.k;
  call.b = w, call.b_row = s.c;
  call.c = is_strided(s) ? strided_pixels(s, dtype) : gx, call.c_row = s.c;
  matmul(call);
  if (is_strided(s)) scatter(s, dtype, static_cast<const char*>(call.c), gx);
}

void pointwise_backward_weights(const Conv2dShape& s, DType dtype, const void* x, const void* gy,
                                void* gw) {
  MatmulCall call;  // gw[K, C] = gy[pixels, K]^T x[pixels, C]
  call.dtype = dtype;
  call.m = s.k, call.n = s.c, call.k = pixels(s);
  call.a = gy, call.a_row = 1, call.a_col = s.k;
  call.b = gather(s, dtype, x), call.b_row = s.c;
  call.c = gw, call.c_row = s.c;
  matmul(call);
}

}  // namespace tarn::cpu
