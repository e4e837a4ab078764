// clip.cpp - norms and scaling of all gradients in one pass each.
#include "tarn/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/optim/gradients.h"

namespace tarn::optim {

using detail::Gradients;
using detail::total_norm;

namespace {

void check_norm_type(const char* op, double norm_type) {
  TARN_CHECK_AS(ValueError, norm_type == 1 || norm_type == 2 || norm_type == INFINITY, op,
                ": norm_type must be 1, 2 or infinity; got ", norm_type);
}

// What makes the norm infinite or NaN. Each may be finite and only their sum not: then the largest.
std::string first_bad(const Gradients& grads, const std::vector<double>& norms,
                      const std::function<std::string(size_t)>& name) {
  const auto bad =
      std::find_if(norms.begin(), norms.end(), [](double n) { return !std::isfinite(n); });
  const auto at = bad != norms.end() ? bad : std::max_element(norms.begin(), norms.end());
  const size_t owner = grads.owners[static_cast<size_t>(at - norms.begin())];
  return tarn::detail::concat(name(owner), " with norm ", *at);
}

double clip(const std::vector<Tensor>& params, double max_norm, double norm_type, bool strict,
            const std::function<std::string(size_t)>& name, const NormAgreement* ranks) {
  const OpScope scope("clip_grad_norm");
  check_norm_type("clip_grad_norm_", norm_type);
  TARN_CHECK_AS(ValueError, max_norm >= 0, "clip_grad_norm_: max_norm must be at least 0; got ",
                max_norm);
  const Gradients grads("clip_grad_norm_", params);
  const std::vector<double> norms = grads.norms(norm_type);
  const double own = total_norm(norms, norm_type);
  const double total = ranks ? ranks->total(own, norm_type) : own;
  if (!std::isfinite(total)) {
    std::string bad;
    if (strict && !norms.empty() && (!ranks || !std::isfinite(own))) {
      bad = first_bad(grads, norms, name);
    }
    if (strict && ranks) bad = ranks->first(bad);
    TARN_CHECK_AS(ValueError, !strict, "clip_grad_norm_: the gradients' norm must be finite; got ",
                  total, bad.empty() ? "" : ", first from ", bad);
    for (const Tensor& p : params) Tensor(p).zero_grad();
    return total;
  }
  const double factor = max_norm / (total + 1e-6);
  if (factor < 1) grads.scale(factor);
  return total;
}

}  // namespace

double clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, double norm_type,
                       bool error_if_nonfinite, const NormAgreement* ranks) {
  const auto name = [&](size_t i) {
    return tarn::detail::concat("parameter ", i, "=", params[i].describe());
  };
  return clip(params, max_norm, norm_type, error_if_nonfinite, name, ranks);
}

double clip_grad_norm_(const TensorDict& named_params, double max_norm, double norm_type,
                       bool error_if_nonfinite, const NormAgreement* ranks) {
  std::vector<Tensor> params;
  for (const auto& item : named_params) params.push_back(item.second);
  const auto name = [&](size_t i) {
    return tarn::detail::concat("'", (named_params.begin() + static_cast<std::ptrdiff_t>(i))->first,
                                "'=", params[i].describe());
  };
  return clip(params, max_norm, norm_type, error_if_nonfinite, name, ranks);
}

double grad_norm(const std::vector<Tensor>& params, double norm_type, const NormAgreement* ranks) {
  check_norm_type("grad_norm", norm_type);
  const double own = total_norm(Gradients("grad_norm", params).norms(norm_type), norm_type);
  return ranks ? ranks->total(own, norm_type) : own;
}

void clip_grad_value_(const std::vector<Tensor>& params, double clip_value) {
  const OpScope scope("clip_grad_value");
  TARN_CHECK_AS(ValueError, clip_value >= 0,
                "clip_grad_value_: clip_value must be at least 0; got ", clip_value);
  const Gradients grads("clip_grad_value_", params);
  grads.by_device([&](const std::vector<Tensor>& tensors, const std::vector<size_t>&) {
    TARN_KERNEL(optim, clamp, tensors[0].device(), tensors, clip_value);
  });
  grads.changed();
}

}  // namespace tarn::optim
