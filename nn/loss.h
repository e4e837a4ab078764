// loss.h - losses as modules: called with (output, target). The functions in
// autograd/functions_loss.h say what each computes.
#pragma once

#include "tarn/autograd/functions_loss.h"
#include "tarn/nn/module.h"

namespace tarn::nn {

/// Cross entropy of logits [N, C, ...] against class numbers or probabilities; `weight` [C] gives
/// classes weights.
class CrossEntropyLoss final : public Module {
 public:
  CrossEntropyLoss() : CrossEntropyLoss(CrossEntropyOptions{}) {}
  explicit CrossEntropyLoss(const CrossEntropyOptions& options, Tensor class_weight = {})
      : weight(this, "weight", std::move(class_weight)), options_(options) {}
  Tensor operator()(const Tensor& logits, const Tensor& target) {
    return cross_entropy(logits, target, weight, options_);
  }
  Buffer weight;

 private:
  CrossEntropyOptions options_;
};

class NLLLoss final : public Module {
 public:
  explicit NLLLoss(Tensor class_weight = {}, int64_t ignore_index = -100,
                   Reduction reduction = Reduction::kMean)
      : weight(this, "weight", std::move(class_weight)),
        ignore_index_(ignore_index),
        reduction_(reduction) {}
  Tensor operator()(const Tensor& log_probabilities, const Tensor& target) {
    return nll_loss(log_probabilities, target, weight, ignore_index_, reduction_);
  }
  Buffer weight;

 private:
  int64_t ignore_index_;
  Reduction reduction_;
};

/// Declares a loss without options but its reduction.
#define TARN_LOSS(Name, function)                                                    \
  class Name final : public Module {                                                 \
   public:                                                                           \
    explicit Name(Reduction reduction = Reduction::kMean) : reduction_(reduction) {} \
    Tensor operator()(const Tensor& x, const Tensor& target) {                       \
      return tarn::function(x, target, reduction_);                                  \
    }                                                                                \
                                                                                     \
   private:                                                                          \
    Reduction reduction_;                                                            \
  };
TARN_LOSS(MSELoss, mse_loss)
TARN_LOSS(L1Loss, l1_loss)
TARN_LOSS(SmoothL1Loss, smooth_l1_loss)
TARN_LOSS(HuberLoss, huber_loss)
TARN_LOSS(KLDivLoss, kl_div)
#undef TARN_LOSS

/// Binary cross entropy of sigmoid(x); pos_weight multiplies the positive term.
class BCEWithLogitsLoss final : public Module {
 public:
  explicit BCEWithLogitsLoss(Reduction reduction = Reduction::kMean, Tensor positive_weight = {})
      : pos_weight(this, "pos_weight", std::move(positive_weight)), reduction_(reduction) {}
  Tensor operator()(const Tensor& x, const Tensor& target) {
    return binary_cross_entropy_with_logits(x, target, {}, pos_weight, reduction_);
  }
  Buffer pos_weight;

 private:
  Reduction reduction_;
};

}  // namespace tarn::nn
