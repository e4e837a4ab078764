// raw_norm.h - tarn::raw: batch norm and layer norm, unrecorded.
#pragma once

#include "tarn/core/kernels/norm.h"
#include "tarn/core/tensor.h"

namespace tarn::raw {

/// Throws unless residual, which an operation adds to x or to what it makes of x, has x's sizes,
/// dtype and device.
void check_residual(const char* op, const Tensor& x, const Tensor& residual);
/// Throws unless x is [N, C, ...] and floating, per-channel tensors (weight, bias, running ...) are
/// [C] or undefined, and residual (if any) has x's sizes and dtype.
void check_batch_norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& running_mean, const Tensor& running_var,
                      const Tensor& residual);

struct BatchNormResult {
  Tensor y, mean, rstd, var;  ///< statistics [C] in f32 (f64 for f64); var is biased
};
/// act(xhat * weight + bias + residual) with the statistics of x; keeps x's layout. An empty x
/// gives an empty y, statistics 0. Throws ValueError on one value per channel.
BatchNormResult batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                 const Tensor& residual, bool relu, double eps);
/// The same with given mean and rstd.
Tensor batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const Tensor& residual, bool relu, const Tensor& mean, const Tensor& rstd);

struct BatchNormGrads {
  Tensor x, weight, bias, residual;
};
/// The wanted gradients; y as in NormKernels::batch_norm_backward. Without relu the residual's
/// gradient is gy itself.
BatchNormGrads batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& y,
                                   const Tensor& weight, const Tensor& bias, const Tensor& mean,
                                   const Tensor& rstd, bool relu, bool training, bool want_x,
                                   bool want_affine, bool want_residual);

enum class RowNorm : uint8_t { kLayer, kRms };

struct LayerNormResult {
  Tensor y, mean, rstd;  ///< statistics [M]; RMS norm has no mean
  Tensor sum;            ///< x + residual, if one was given
};
/// Over the last dimension of x [M, D], or of x + residual (of x's sizes and dtype).
LayerNormResult layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                           RowNorm kind = RowNorm::kLayer, const Tensor& residual = {});
struct LayerNormGrads {
  Tensor x, weight, bias;
};
/// mean undefined: of RMS norm. gsum (or undefined) is added to the gradient of x.
LayerNormGrads layer_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& weight,
                                   const Tensor& mean, const Tensor& rstd, bool want_x,
                                   bool want_weight, bool want_bias, const Tensor& gsum = {});

}  // namespace tarn::raw
