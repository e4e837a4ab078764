// norm.h - slots for normalisation layers. Statistics are f32 (f64 for f64) and two-pass or
// Welford.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

struct NormKernels {
  /// Training batch norm over the channels of x [N, C, *], fused: y = act(xhat * weight + bias +
  /// residual). x, y, residual: one dtype and one layout (4-d channels_last-dense, or row-major
  /// dense [N, C, L]); weight, bias [C] or undefined (1 and 0), f32 or x's dtype; residual may be
  /// undefined; relu: act = max(0, .) with NaN kept. Writes mean and rstd [C] (biased variance),
  /// and var [C] (biased) for the running statistics.
  void (*batch_norm_train)(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& residual, bool relu, double eps, const Tensor& y,
                           const Tensor& mean, const Tensor& rstd, const Tensor& var,
                           Stream stream) = nullptr;
  /// Evaluation: the same with given mean and rstd [C].
  void (*batch_norm_eval)(const Tensor& x, const Tensor& weight, const Tensor& bias,
                          const Tensor& residual, bool relu, const Tensor& mean, const Tensor& rstd,
                          const Tensor& y, Stream stream) = nullptr;
  /// Gradients of batch_norm_train. With relu, gy is masked by y > 0; y is given only if a residual
  /// was added, else the mask is recomputed from x. Writes gx, gweight and gbias [C] (each
  /// undefined: skip) and, if there was a relu and a residual, gresidual = masked gy (undefined:
  /// skip). training = false: mean and rstd were constants.
  void (*batch_norm_backward)(const Tensor& gy, const Tensor& x, const Tensor& y,
                              const Tensor& weight, const Tensor& bias, const Tensor& mean,
                              const Tensor& rstd, bool relu, bool training, const Tensor& gx,
                              const Tensor& gweight, const Tensor& gbias, const Tensor& gresidual,
                              Stream stream) = nullptr;
  /// Layer norm over the last dimension of x [M, D] (dense): y, mean [M], rstd [M]. weight, bias
  /// [D] or undefined. mean undefined: RMS norm, that is mean = 0 and rstd of the squares.
  /// residual [M, D] defined: x + residual is written to sum (rounded to x's dtype) and normalised.
  void (*layer_norm)(const Tensor& x, const Tensor& residual, const Tensor& weight,
                     const Tensor& bias, double eps, const Tensor& sum, const Tensor& y,
                     const Tensor& mean, const Tensor& rstd, Stream stream) = nullptr;
  /// x: what was normalised; mean undefined: of RMS norm. gsum (or undefined): what the sum's other
  /// uses bring, added to gx.
  void (*layer_norm_backward)(const Tensor& gy, const Tensor& gsum, const Tensor& x,
                              const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                              const Tensor& gx, const Tensor& gweight, const Tensor& gbias,
                              Stream stream) = nullptr;
};

}  // namespace tarn
