// softmax.h - slots for softmax and the losses built on it.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

struct SoftmaxKernels {
  /// y = softmax or log_softmax of x along dim; x and y row-major dense.
  void (*softmax)(const Tensor& x, int64_t dim, bool log, const Tensor& y, Stream stream) = nullptr;
  /// gx from gy and the result y.
  void (*softmax_backward)(const Tensor& gy, const Tensor& y, int64_t dim, bool log,
                           const Tensor& gx, Stream stream) = nullptr;
  /// Fused softmax and cross entropy over rows of logits [M, V] (dense): per row
  /// loss[i] = -(1 - e) * w[t] * logp[t] - (e / V) * sum_c w[c] * logp[c], 0 where t ==
  /// ignore_index; stats[i] = {max, log sum exp(x - max), w[t] or 0 where ignored}: the first two
  /// apart, since their sum would lose the second where logits are large. stats [M, 3] and loss
  /// [M]: f32 (f64 for f64), as totals [3] = {sum of loss, sum of the weights in stats, their
  /// quotient}. target i64 [M]; weight [V] or undefined. Targets were
  /// checked; where the check is only queued (kernels/index.h), one may be out of range: its row
  /// counts as ignored, and nothing is read there.
  void (*cross_entropy)(const Tensor& logits, const Tensor& target, const Tensor& weight,
                        int64_t ignore_index, double smoothing, const Tensor& loss,
                        const Tensor& stats, const Tensor& totals, Stream stream) = nullptr;
  /// glogits = gradient, with gloss [M] (dtype of stats, any stride) the gradient of each row's
  /// loss.
  void (*cross_entropy_backward)(const Tensor& gloss, const Tensor& logits, const Tensor& target,
                                 const Tensor& weight, int64_t ignore_index, double smoothing,
                                 const Tensor& stats, const Tensor& glogits,
                                 Stream stream) = nullptr;
};

}  // namespace tarn
