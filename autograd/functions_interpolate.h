// functions_interpolate.h - images, sequences and volumes made larger or smaller; recorded.
#pragma once

#include <initializer_list>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn {

enum class InterpolateMode : uint8_t {
  kNearest,    ///< 1 to 3 dimensions after [N, C]
  kLinear,     ///< 1
  kBilinear,   ///< 2
  kTrilinear,  ///< 3
  kBicubic,    ///< 2
  kArea,       ///< 1 to 3: the mean of what falls together, as adaptive_avg_pool2d
};

/// A factor for all dimensions, or one for each: 2, {1.5, 2}.
struct Scales {
  Scales() = default;
  Scales(double all) : values{all} {}
  Scales(std::initializer_list<double> each) : values(each) {}
  std::vector<double> values;
};

/// Exactly one of size and scale_factor is given, with one entry for all dimensions after [N, C] or
/// one for each.
struct InterpolateOptions {
  Shape size{};           ///< of the result
  Scales scale_factor{};  ///< the result has floor(size * factor); factors also set the distances
  InterpolateMode mode = InterpolateMode::kNearest;
  bool align_corners = false;  ///< the corners' centres, not their outer edges, stay in place
};

/// Resamples x [N, C, L], [N, C, H, W] or [N, C, D, H, W]; coordinates are PyTorch's. With
/// s = 1 / factor, or in / out, place i of the result is in each dimension
///   nearest   x at floor(i s)
///   linear    x at max((i + 1/2) s - 1/2, 0), or at i (in - 1) / (out - 1) with align_corners,
///             weighted between its two neighbours
///   bicubic   x at (i + 1/2) s - 1/2 likewise, between four (Keys 1981, a = -0.75)
/// Places outside are those at the border; where no size changes the result may be x itself. The
/// dtype stays; halves are weighted in f32; channels_last stays channels_last. Any dtype for
/// nearest, else floating. Differentiable any number of times. Throws ShapeError on other
/// dimensions than the mode takes and on empty images (an empty batch is fine), ValueError on
/// options that do not go together, DTypeError.
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

/// Channels become places: x [..., C r^2, H, W] -> [..., C, H r, W r]; channel c r^2 + i r + j goes
/// to row i, column j of each r by r block of channel c. Throws ShapeError unless r^2 divides the
/// channels. Source: Shi et al. 2016, arXiv:1609.05158.
Tensor pixel_shuffle(const Tensor& x, int64_t r);
/// The way back: [..., C, H r, W r] -> [..., C r^2, H, W].
Tensor pixel_unshuffle(const Tensor& x, int64_t r);

}  // namespace tarn
