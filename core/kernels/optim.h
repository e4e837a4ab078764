// optim.h - slots for multi-tensor optimizer steps: all parameters in one pass.
#pragma once

#include <span>

#include "tarn/core/tensor.h"

namespace tarn {

struct SgdArgs {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize;
  bool first_step;  ///< the momentum buffers are fresh: buffer = gradient
};

struct AdamArgs {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled;  ///< AdamW
  bool amsgrad, maximize;
  int64_t step;  ///< counted from 1
};

/// Lists run in parallel: params[i], grads[i], ... have equal sizes and one dense layout; params
/// may be f32, f64, or halves with f32 state. grad_scale multiplies every gradient on load (1:
/// none).
struct OptimKernels {
  void (*sgd)(const SgdArgs& args, double grad_scale, std::span<const Tensor> params,
              std::span<const Tensor> grads, std::span<const Tensor> momentum,
              Stream stream) = nullptr;
  void (*adam)(const AdamArgs& args, double grad_scale, std::span<const Tensor> params,
               std::span<const Tensor> grads, std::span<const Tensor> exp_avg,
               std::span<const Tensor> exp_avg_sq, std::span<const Tensor> max_exp_avg_sq,
               Stream stream) = nullptr;
  /// out [n] (f64) = per-tensor p-norm, p in {1, 2, inf}; overflow-safe: accumulates in f64.
  void (*norms)(std::span<const Tensor> tensors, double p, const Tensor& out,
                Stream stream) = nullptr;
  /// Every tensor *= factor.
  void (*scale)(std::span<const Tensor> tensors, double factor, Stream stream) = nullptr;
};

}  // namespace tarn
