// functions_pool.h - pooling over images, recorded.
//
// x: [N, C, H, W] or [C, H, W], floating; channels_last stays channels_last. The output has
// OH = floor((H + 2 padding - dilation (kernel - 1) - 1) / stride) + 1 rows; ceil instead of floor
// with ceil_mode, which takes images smaller than a window too, but never a window that starts in
// the right padding. A stride of 0 means the kernel's size. Throws ValueError on a padding of more
// than half the kernel, ShapeError where no window fits.
#pragma once

#include <utility>

#include "tarn/core/raw_pool.h"
#include "tarn/core/tensor.h"

namespace tarn {

/// Maximum of each window; NaN wins, padding never does. The gradient goes to the first maximum.
Tensor max_pool2d(const Tensor& x, Size2 kernel, Size2 stride = 0, Size2 padding = 0,
                  Size2 dilation = 1, bool ceil_mode = false);
/// The same with the positions h * W + w of the maxima (i64).
std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, Size2 kernel, Size2 stride = 0,
                                                  Size2 padding = 0, Size2 dilation = 1,
                                                  bool ceil_mode = false);
/// Mean of each window. Padding counts as zeros unless count_include_pad is off; divisor_override
/// (0: none) replaces the number that is divided by.
Tensor avg_pool2d(const Tensor& x, Size2 kernel, Size2 stride = 0, Size2 padding = 0,
                  bool ceil_mode = false, bool count_include_pad = true,
                  int64_t divisor_override = 0);
/// Mean (maximum) over windows [floor(i H / OH), ceil((i + 1) H / OH)), so that the output has the
/// size asked for.
Tensor adaptive_avg_pool2d(const Tensor& x, Size2 output);
Tensor adaptive_max_pool2d(const Tensor& x, Size2 output);
std::pair<Tensor, Tensor> adaptive_max_pool2d_with_indices(const Tensor& x, Size2 output);

/// One dimension: x [N, C, L] or [C, L].
Tensor max_pool1d(const Tensor& x, int64_t kernel, int64_t stride = 0, int64_t padding = 0,
                  int64_t dilation = 1, bool ceil_mode = false);
Tensor avg_pool1d(const Tensor& x, int64_t kernel, int64_t stride = 0, int64_t padding = 0,
                  bool ceil_mode = false, bool count_include_pad = true);
Tensor adaptive_avg_pool1d(const Tensor& x, int64_t output);
Tensor adaptive_max_pool1d(const Tensor& x, int64_t output);

}  // namespace tarn
