// conv_shape.h - the sizes of one convolution, as kernels and libraries see them.
#pragma once

#include <compare>

#include "tarn/core/hd.h"
#include "tarn/core/kernels/conv.h"

namespace tarn::cuda {

/// x [N, H, W, C] and y [N, OH, OW, K] dense, weight [K, CG, R, S] dense; group g reads the CG
/// channels from g * CG and makes the KG from g * KG.
/// Invariant: one image of x or y has fewer than 2^30 elements, so that offsets in it are 32 bits.
struct ConvShape {
  int64_t n = 0;
  int c = 0, h = 0, w = 0;
  int k = 0, oh = 0, ow = 0;
  int r = 1, s = 1;
  int stride_h = 1, stride_w = 1;
  int pad_h = 0, pad_w = 0;
  int dilation_h = 1, dilation_w = 1;
  int groups = 1;

  TARN_HD int cg() const { return c / groups; }
  TARN_HD int kg() const { return k / groups; }
  TARN_HD int filter() const { return r * s; }
  TARN_HD int64_t x_image() const { return static_cast<int64_t>(h) * w * c; }
  TARN_HD int64_t y_image() const { return static_cast<int64_t>(oh) * ow * k; }
  TARN_HD int64_t x_pixels() const { return n * h * w; }
  TARN_HD int64_t y_pixels() const { return n * oh * ow; }
  TARN_HD int64_t weights() const { return static_cast<int64_t>(k) * cg() * filter(); }

  auto operator<=>(const ConvShape&) const = default;
};

/// Throws ShapeError if an image, or what a window reaches, is beyond 32-bit offsets.
ConvShape conv_shape(const Shape& x, const Shape& weight, const Shape& y, const Conv2dOptions& o);

/// Our own kernels, every dtype and shape; libraries override them where they are better.
ConvKernels own_conv_kernels();

/// gb [K] = sums of gy [N, OH, OW, K] over all pixels.
void conv_bias_gradient(const ConvShape& shape, const Tensor& gy, const Tensor& gb, Stream stream);

/// to [K, R, S, CG] = from [K, CG, R, S], elements of item_size bytes (2 or 4); or the way back.
void pack_filters(const ConvShape& shape, size_t item_size, const void* from, void* to,
                  Stream stream);
void unpack_filters(const ConvShape& shape, size_t item_size, const void* from, void* to,
                    Stream stream);

}  // namespace tarn::cuda
