// clip.h - keeping gradients within bounds, between backward and step.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tarn/core/tensor_dict.h"

namespace tarn::optim {

/// Where each of several ranks holds other gradients, or other parts of them: how what they found
/// becomes one, the same for all of them. All ranks call it.
struct NormAgreement {
  /// The norm of all gradients together, from that of this rank's.
  std::function<double(double norm, double norm_type)> total;
  /// The first text in the order of ranks that is not empty.
  std::function<std::string(const std::string& text)> first;
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), where norm is that of all gradients
/// together (norm_type 1, 2 or infinity), and returns the norm before. It is summed in f64, so f32
/// gradients of 1e20 do not overflow it.
/// If the norm is not finite: with error_if_nonfinite, throws ValueError that names the first bad
/// parameter and leaves the gradients untouched; without, drops all gradients, so that the next
/// step() changes nothing. No gradient is ever filled with NaN.
/// ranks: "all gradients" are those of all ranks.
double clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, double norm_type = 2,
                       bool error_if_nonfinite = false, const NormAgreement* ranks = nullptr);
/// The same, with names for the error: clip_grad_norm_(net.named_parameters(), 1).
double clip_grad_norm_(const TensorDict& named_params, double max_norm, double norm_type = 2,
                       bool error_if_nonfinite = false, const NormAgreement* ranks = nullptr);

/// The norm of all gradients together, without changing them.
double grad_norm(const std::vector<Tensor>& params, double norm_type = 2,
                 const NormAgreement* ranks = nullptr);

/// Clamps every gradient to [-clip_value, clip_value]. NaN stays NaN.
void clip_grad_value_(const std::vector<Tensor>& params, double clip_value);

}  // namespace tarn::optim
