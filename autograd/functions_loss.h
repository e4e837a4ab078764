// functions_loss.h - losses, recorded.
//
// x and target must have the same sizes (nothing is broadcast: a [3] against a [3, 1] would be nine
// numbers). Reductions: mean over all elements, sum, none, or the mean over the batch (meant for
// kl_div; cross_entropy and nll_loss refuse it).
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

enum class Reduction : uint8_t { kNone, kMean, kSum, kBatchMean };

struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::kMean;
};
/// -log softmax(logits)[target], fused. logits: [C], [N, C] or [N, C, d1, ...]; target: class
/// indices (i64; [], [N] or [N, d1, ...]) or probabilities (logits' sizes and dtype); weight: [C]
/// or undefined. With smoothing e over C classes:
///   (1 - e) * -w[t] log p[t] + e / C * sum_c -w[c] log p[c].
/// The mean divides by the sum of the weights of the targets that count; if none counts it is NaN,
/// and the gradients are 0. Probabilities: sum_c -w[c] t[c] log p[c], the mean over items.
/// Throws IndexError that names a label outside [0, C) that is not ignore_index.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const Tensor& weight = {},
                     const CrossEntropyOptions& options = {});
/// -w[t] * x[t] for log probabilities x [N, C, d1, ...] or [C]; otherwise as cross_entropy.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& target, const Tensor& weight = {},
                int64_t ignore_index = -100, Reduction reduction = Reduction::kMean);

/// (x - target)^2.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);
/// |x - target|.
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean);
/// With d = |x - target|: d^2 / (2 beta) where d < beta, else d - beta / 2.
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean,
                      double beta = 1);
/// With d = |x - target|: d^2 / 2 where d <= delta, else delta (d - delta / 2).
Tensor huber_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean,
                  double delta = 1);
/// -weight (target log x + (1 - target) log(1 - x)), logarithms at least -100. weight broadcasts to
/// x, or is undefined. Throws ValueError unless every x is in [0, 1].
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight = {},
                            Reduction reduction = Reduction::kMean);
/// The same of sigmoid(x), stable for any x; pos_weight multiplies the target's term and
/// broadcasts.
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const Tensor& weight = {}, const Tensor& pos_weight = {},
                                        Reduction reduction = Reduction::kMean);
/// target (log target - x) for log probabilities x, 0 where target is 0; log_target: target holds
/// logarithms as well.
Tensor kl_div(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::kMean,
              bool log_target = false);

}  // namespace tarn
