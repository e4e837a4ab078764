// conv_dispatch.cpp - which engine runs a convolution, by type, shape and measurement.
#include "tarn/core/cpu/conv_dispatch.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tarn/core/cpu/column_sums.h"
#include "tarn/core/cpu/dnnl_conv.h"
#include "tarn/core/cpu/dnnl_matmul.h"
#include "tarn/core/cpu/half_buffer.h"
#include "tarn/core/cpu/im2col_conv.h"
#include "tarn/core/cpu/pointwise_conv.h"
#include "tarn/core/cpu/winograd.h"

namespace tarn::cpu {
namespace {

std::atomic<bool>& winograd_flag() {
  static std::atomic<bool> enabled = [] {
    const char* value = std::getenv("TARN_WINOGRAD");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return enabled;
}

/// Measured against the library's direct sums. Tiles that reach beyond the image are work for
/// nothing: stride 1 wins down to half-filled tiles, stride 2 (which saves less) with full ones.
/// bf16 through f32 points still beats direct sums at twice the rate of f32 at stride 1 (ResNet-18:
/// 440 against 502 ms of convolutions), but not at stride 2, and not AMX.
bool use_winograd(const Conv2dShape& s, DType dtype) {
  if (!winograd_enabled() || !winograd_applies(s)) return false;
  if (dtype != DType::kF32 && dtype != DType::kBF16) return false;
  if (dtype == DType::kBF16) {
    const Bf16Products library = dnnl_bf16_products();
    if (library == Bf16Products::kTiles) return false;
    if (library == Bf16Products::kDots && s.stride_h != 1) return false;
  }
  const int64_t oh = s.oh(), ow = s.ow();
  const int64_t tiled = (oh + 3) / 4 * ((ow + 3) / 4) * 16;
  const double filled = static_cast<double>(oh * ow) / static_cast<double>(tiled);
  return s.stride_h == 1 ? filled > 0.45 : filled > 0.9 && s.c >= 32;
}

bool is_slow_bf16(DType dtype) {
  return dtype == DType::kBF16 && dnnl_bf16_products() == Bf16Products::kNoGain;
}

/// Whether a convolution is a product of our own: 1x1, unless the library is faster in bf16.
bool use_pointwise(const Conv2dShape& s, DType dtype) {
  return pointwise_applies(s) && (dtype != DType::kBF16 || is_slow_bf16(dtype));
}

/// Whether to ask the library. bf16 that it computes slower than f32 is widened, as all of f16 is:
/// forward and backward of 64 channels, 28x28, 5x5, take 12 ms instead of 25. Not where each
/// channel is on its own: there reading is what costs, and widened it takes 2.6 ms instead of 1.9.
bool use_library(const Conv2dShape& s, DType dtype) {
  if (dtype == DType::kF16) return false;
  return !is_slow_bf16(dtype) || s.groups == s.c;
}

/// f(TypeTag<T>) for f32 or bf16.
template <typename F>
void as_pixels(DType dtype, F f) {
  if (dtype == DType::kF32) return f(TypeTag<float>{});
  f(TypeTag<bfloat16>{});
}

void fill_zero(void* data, DType dtype, int64_t count) {
  std::memset(data, 0, static_cast<size_t>(count * item_size(dtype)));
}

}  // namespace

bool winograd_enabled() {
  return winograd_flag().load(std::memory_order_relaxed);
}

void set_winograd_enabled(bool enabled) {
  winograd_flag().store(enabled, std::memory_order_relaxed);
}

void conv2d_forward(const Conv2dShape& s, DType dtype, const void* x, const void* w,
                    const void* bias, void* y) {
  if (s.output_size() == 0) return;
  if (dtype == DType::kF64) {
    im2col_forward(s, static_cast<const double*>(x), static_cast<const double*>(w),
                   static_cast<const double*>(bias), static_cast<double*>(y));
    return;
  }
  if (use_winograd(s, dtype)) {
    return as_pixels(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      winograd_forward(s, static_cast<const T*>(x), static_cast<const T*>(w),
                       static_cast<const T*>(bias), static_cast<T*>(y));
    });
  }
  if (use_pointwise(s, dtype)) {
    pointwise_forward(s, dtype, x, w, bias, y);
    return;
  }
  if (use_library(s, dtype) && dnnl_conv(ConvPass::kForward, s, dtype, const_cast<void*>(x),
                                         const_cast<void*>(w), bias, y)) {
    return;
  }
  if (dtype == DType::kF32) {
    im2col_forward(s, static_cast<const float*>(x), static_cast<const float*>(w),
                   static_cast<const float*>(bias), static_cast<float*>(y));
    return;
  }
  FloatCopy fx(x, dtype, s.input_size()), fw(w, dtype, s.weight_size()), fy(s.output_size());
  FloatCopy fb(bias, dtype, bias != nullptr ? s.k : 0);
  conv2d_forward(s, DType::kF32, fx.data(), fw.data(), bias != nullptr ? fb.data() : nullptr,
                 fy.data());
  fy.store(y, dtype);
}

void conv2d_backward_data(const Conv2dShape& s, DType dtype, const void* gy, const void* w,
                          void* gx) {
  if (s.input_size() == 0) return;
  if (s.output_size() == 0) {
    fill_zero(gx, dtype, s.input_size());
    return;
  }
  if (dtype == DType::kF64) {
    im2col_backward_data(s, static_cast<const double*>(gy), static_cast<const double*>(w),
                         static_cast<double*>(gx));
    return;
  }
  if (use_winograd(s, dtype)) {
    return as_pixels(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      winograd_backward_data(s, static_cast<const T*>(gy), static_cast<const T*>(w),
                             static_cast<T*>(gx));
    });
  }
  // The library's own 1x1 of bf16 is wrong for odd k (see dnnl_conv.cpp), its products are not.
  if (use_pointwise(s, dtype) || (dtype == DType::kBF16 && s.k % 2 != 0 && pointwise_applies(s))) {
    pointwise_backward_data(s, dtype, gy, w, gx);
    return;
  }
  if (use_library(s, dtype) && dnnl_conv(ConvPass::kBackwardData, s, dtype, gx,
                                         const_cast<void*>(w), nullptr, const_cast<void*>(gy))) {
    return;
  }
  if (dtype == DType::kF32) {
    im2col_backward_data(s, static_cast<const float*>(gy), static_cast<const float*>(w),
                         static_cast<float*>(gx));
    return;
  }
  FloatCopy fgy(gy, dtype, s.output_size()), fw(w, dtype, s.weight_size()), fgx(s.input_size());
  conv2d_backward_data(s, DType::kF32, fgy.data(), fw.data(), fgx.data());
  fgx.store(gx, dtype);
}

void conv2d_backward_weights(const Conv2dShape& s, DType dtype, const void* x, const void* gy,
                             void* gw, void* gb) {
  if (gb != nullptr) column_sums(gy, dtype, s.k > 0 ? s.output_size() / s.k : 0, s.k, gb);
  if (s.weight_size() == 0) return;
  if (s.output_size() == 0) {
    fill_zero(gw, dtype, s.weight_size());
    return;
  }
  if (dtype == DType::kF64) {
    im2col_backward_weights(s, static_cast<const double*>(x), static_cast<const double*>(gy),
                            static_cast<double*>(gw));
    return;
  }
  if (use_winograd(s, dtype)) {
    return as_pixels(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      winograd_backward_weights(s, static_cast<const T*>(x), static_cast<const T*>(gy),
                                static_cast<T*>(gw));
    });
  }
  if (use_pointwise(s, dtype)) {
    pointwise_backward_weights(s, dtype, x, gy, gw);
    return;
  }
  if (use_library(s, dtype) && dnnl_conv(ConvPass::kBackwardWeights, s, dtype, const_cast<void*>(x),
                                         gw, nullptr, const_cast<void*>(gy))) {
    return;
  }
  if (dtype == DType::kF32) {
    im2col_backward_weights(s, static_cast<const float*>(x), static_cast<const float*>(gy),
                            static_cast<float*>(gw));
    return;
  }
  FloatCopy fx(x, dtype, s.input_size()), fgy(gy, dtype, s.output_size()), fgw(s.weight_size());
  conv2d_backward_weights(s, DType::kF32, fx.data(), fgy.data(), fgw.data(), nullptr);
  fgw.store(gw, dtype);
}

}  // namespace tarn::cpu
