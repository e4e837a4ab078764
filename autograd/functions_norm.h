// functions_norm.h - normalisation layers, recorded.
//
// Statistics are f32 (f64 for f64) whatever the dtype of x, by Welford's method; weights may be f32
// or of x's dtype. channels_last stays channels_last.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

/// Batch normalisation over all dimensions but the second: (x - mean) / sqrt(var + eps) * weight +
/// bias, per channel. x: [N, C, ...]; the rest: [C] or undefined.
/// Training uses the batch's mean and biased variance, and moves the running statistics (in place,
/// where given) by `momentum` towards its mean and unbiased variance; an empty batch leaves them.
/// Evaluation uses the running statistics. Throws ValueError on one value per channel in training,
/// or without running statistics in evaluation.
/// Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight = {}, const Tensor& bias = {}, bool training = false,
                  double momentum = 0.1, double eps = 1e-5);

struct BatchNormOptions {
  bool training = false;
  double momentum = 0.1;
  double eps = 1e-5;
  bool relu = false;
};
/// act(batch_norm(x) + residual) in one pass: residual is of x's sizes or undefined, act is relu or
/// nothing.
Tensor batch_norm_act(const Tensor& x, const Tensor& residual, const Tensor& running_mean,
                      const Tensor& running_var, const Tensor& weight, const Tensor& bias,
                      const BatchNormOptions& options);

/// Layer normalisation over the last dimensions, those of `normalized`: (x - mean) /
/// sqrt(var + eps) * weight + bias. weight, bias: of sizes `normalized`, or undefined.
/// Source: Ba et al. 2016, arXiv:1607.06450.
Tensor layer_norm(const Tensor& x, const Shape& normalized, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight over the last dimension; weight: [D] or undefined.
/// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double eps = 1e-5);

struct AddNormResult {
  Tensor sum, y;
};
/// sum = x + residual and y = layer_norm(sum), in one pass over memory each way; residual of x's
/// sizes and dtype. Under autocast the dtypes are those of + and of layer_norm.
AddNormResult add_layer_norm(const Tensor& x, const Tensor& residual, const Shape& normalized,
                             const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);
/// sum = x + residual and y = rms_norm(sum), likewise.
AddNormResult add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight = {},
                           double eps = 1e-5);
/// Normalisation of groups of C / groups channels. x: [N, C, ...]; weight, bias: [C] or undefined.
/// Throws ShapeError if groups does not divide C. Source: Wu and He 2018, arXiv:1803.08494.
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
/// Batch norm of each item by itself. Arguments as batch_norm; without `use_input_stats` the
/// running statistics are used, else they are moved by the mean over the batch.
Tensor instance_norm(const Tensor& x, const Tensor& running_mean = {},
                     const Tensor& running_var = {}, const Tensor& weight = {},
                     const Tensor& bias = {}, bool use_input_stats = true, double momentum = 0.1,
                     double eps = 1e-5);

}  // namespace tarn
