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

struct RmspropArgs {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered, maximize;
};

struct AdagradArgs {
  double lr, eps, weight_decay;
  bool maximize;
};

/// Lists run in parallel: params[i], grads[i], ... have equal sizes and one dense layout. All
/// params of a call are f32, or all f64; state has their dtype, and so have gradients, which may
/// also be halves with f32 params. grad_scale multiplies every gradient on load (1: none). Each
/// element is computed alone, so the result does not depend on threads or on how tensors are
/// listed.
struct OptimKernels {
  /// g += wd p; buffer = momentum buffer + (1 - dampening) g (g itself at first_step); p -= lr d
  /// with d = buffer, or g + momentum buffer (nesterov). momentum empty: d = g.
  void (*sgd)(const SgdArgs& args, double grad_scale, std::span<const Tensor> params,
              std::span<const Tensor> grads, std::span<const Tensor> momentum,
              Stream stream) = nullptr;
  /// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 -
  /// b2^t) + eps). Weight decay goes into g, or (decoupled) p *= 1 - lr wd first. amsgrad: the
  /// running maximum of v (max_exp_avg_sq, else empty) stands in the root.
  void (*adam)(const AdamArgs& args, double grad_scale, std::span<const Tensor> params,
               std::span<const Tensor> grads, std::span<const Tensor> exp_avg,
               std::span<const Tensor> exp_avg_sq, std::span<const Tensor> max_exp_avg_sq,
               Stream stream) = nullptr;
  /// s = alpha s + (1 - alpha) g^2; d = g / (sqrt(s - a^2) + eps) with a = alpha a + (1 - alpha) g
  /// if centered (else a = 0 and grad_avg is empty); buffer = momentum buffer + d, p -= lr buffer
  /// (momentum empty: p -= lr d).
  void (*rmsprop)(const RmspropArgs& args, double grad_scale, std::span<const Tensor> params,
                  std::span<const Tensor> grads, std::span<const Tensor> square_avg,
                  std::span<const Tensor> grad_avg, std::span<const Tensor> momentum,
                  Stream stream) = nullptr;
  /// s += g^2; p -= lr g / (sqrt(s) + eps).
  void (*adagrad)(const AdagradArgs& args, double grad_scale, std::span<const Tensor> params,
                  std::span<const Tensor> grads, std::span<const Tensor> sum,
                  Stream stream) = nullptr;
  /// out [n] (f64) = per-tensor p-norm, p in {1, 2, inf}, of dense floating tensors; accumulates in
  /// f64 in a fixed order, and cannot overflow unless the norm itself does. NaN stays.
  void (*norms)(std::span<const Tensor> tensors, double p, const Tensor& out,
                Stream stream) = nullptr;
  /// Every (dense, floating) tensor *= factor.
  void (*scale)(std::span<const Tensor> tensors, double factor, Stream stream) = nullptr;
  /// Every element is clamped to [-limit, limit]; NaN stays.
  void (*clamp)(std::span<const Tensor> tensors, double limit, Stream stream) = nullptr;
  /// a[i] += weight (b[i] - a[i]). Dense, floating, one dtype and layout per pair.
  void (*lerp)(std::span<const Tensor> a, std::span<const Tensor> b, double weight,
               Stream stream) = nullptr;
};

}  // namespace tarn
