// scaler.cpp - loss scaling: the search for overflows, the skipped steps, the moving scale.
#include "tarn/optim/scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/op_scope.h"
#include "tarn/optim/gradients.h"

namespace tarn::optim {
namespace {

// Losses and gradients are f32 where they are scaled.
constexpr double kLargestScale = std::numeric_limits<float>::max();

void check_scale(const char* op, double scale) {
  TARN_CHECK_AS(ValueError, scale > 0 && scale <= kLargestScale, op,
                ": the scale must be positive and finite in f32; got ", scale);
}

GradScalerOptions checked(const GradScalerOptions& o) {
  check_scale("GradScaler", o.init_scale);
  detail::check_option(o.growth_factor > 1, "GradScaler", "growth_factor", "above 1",
                       o.growth_factor);
  detail::check_option(o.backoff_factor > 0 && o.backoff_factor < 1, "GradScaler", "backoff_factor",
                       "between 0 and 1", o.backoff_factor);
  detail::check_option(o.growth_interval > 0, "GradScaler", "growth_interval", "at least 1",
                       static_cast<double>(o.growth_interval));
  detail::check_option(o.hysteresis > 0, "GradScaler", "hysteresis", "at least 1",
                       static_cast<double>(o.hysteresis));
  detail::check_option(o.min_scale >= 0 && o.min_scale <= o.init_scale, "GradScaler", "min_scale",
                       "at least 0 and at most init_scale", o.min_scale);
  return o;
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options)
    : options_(checked(options)),
      scale_(options.init_scale),
      hysteresis_tracker_(options.hysteresis) {}

Tensor GradScaler::scale(const Tensor& loss) const {
  if (!options_.enabled) return loss;
  TARN_CHECK_AS(ValueError, loss.defined(), "GradScaler: the loss must be a tensor; got none");
  return mul(is_half(loss.dtype()) ? loss.to(DType::kF32) : loss, Scalar(scale_));
}

// One pass over all gradients: the maximum of |g|, which NaN wins.
bool GradScaler::find_overflow(const detail::Gradients& gradients) const {
  const OpScope scope("find_overflow");
  bool found = false;
  for (double n : gradients.norms(INFINITY)) found |= !std::isfinite(n);
  return agree_ ? agree_(found) : found;
}

/// The gradients of an optimizer that may be unscaled now.
detail::Gradients GradScaler::scaled_gradients(const char* op, const Optimizer& optimizer) const {
  const auto known = states_.find(&optimizer);
  const Stage stage = known == states_.end() ? Stage::kReady : known->second.stage;
  TARN_CHECK_AS(ValueError, stage != Stage::kUnscaled, op,
                ": this optimizer's gradients are unscaled already; call update() first");
  TARN_CHECK_AS(ValueError, stage != Stage::kStepped, op,
                ": this optimizer has stepped already; call ", op,
                " before step, once per update()");
  detail::Gradients gradients(op, optimizer.params());
  for (const Tensor& g : gradients.list) {
    TARN_CHECK_AS(ValueError, g.dtype() != DType::kF16, op,
                  ": f16 gradients would lose what the scale has kept; got ", g.describe(),
                  "; keep parameters in f32 under autocast, or only step()");
  }
  return gradients;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  const detail::Gradients gradients = scaled_gradients("unscale_", optimizer);
  OptimizerState& state = states_[&optimizer];
  state.found = find_overflow(gradients);
  gradients.scale(1 / scale_);
  state.stage = Stage::kUnscaled;
}

double GradScaler::clip_grad_norm_(Optimizer& optimizer, double max_norm) {
  const NormAgreement* ranks = norms_ ? &*norms_ : nullptr;
  if (!options_.enabled) {
    return optim::clip_grad_norm_(optimizer.params(), max_norm, 2, false, ranks);
  }
  const OpScope scope("unscale_and_clip");
  TARN_CHECK_AS(ValueError, max_norm >= 0, "clip_grad_norm_: max_norm must be at least 0; got ",
                max_norm);
  const detail::Gradients gradients = scaled_gradients("clip_grad_norm_", optimizer);
  OptimizerState& state = states_[&optimizer];
  const double own = detail::total_norm(gradients.norms(2), 2);
  const double norm = (ranks ? ranks->total(own, 2) : own) / scale_;
  state.found = !std::isfinite(norm);
  if (agree_) state.found = agree_(state.found);
  state.stage = Stage::kUnscaled;
  if (!state.found) gradients.scale(std::min(1.0, max_norm / (norm + 1e-6)) / scale_);
  return norm;
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  OptimizerState& state = states_[&optimizer];
  TARN_CHECK_AS(ValueError, state.stage != Stage::kStepped,
                "step: this optimizer has stepped already; call update() first");
  const bool unscaled = state.stage == Stage::kUnscaled;
  if (!unscaled) state.found = find_overflow({"step", optimizer.params()});
  if (!state.found) optimizer.step(unscaled ? 1 : 1 / scale_);
  state.stage = Stage::kStepped;
  return !state.found;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    check_scale("update", *new_scale);
    scale_ = *new_scale;
    states_.clear();
    return;
  }
  TARN_CHECK_AS(ValueError, !states_.empty(),
                "update: no optimizer was stepped or unscaled since the last update()");
  bool found = false;
  for (const auto& [optimizer, state] : states_) found |= state.found;
  found ? shrink() : grow();
  states_.clear();
}

void GradScaler::shrink() {
  growth_tracker_ = 0;
  if (--hysteresis_tracker_ > 0) return;
  // 1 / scale must be finite in f32.
  const double least = std::min<double>(scale_, std::numeric_limits<float>::min());
  scale_ = std::max({scale_ * options_.backoff_factor, options_.min_scale, least});
}

void GradScaler::grow() {
  if (++growth_tracker_ < options_.growth_interval) return;
  growth_tracker_ = 0;
  hysteresis_tracker_ = options_.hysteresis;
  const double larger = scale_ * options_.growth_factor;
  if (larger <= kLargestScale) scale_ = larger;
}

TensorDict GradScaler::state_dict() const {
  TensorDict dict;
  if (!options_.enabled) return dict;
  const auto real = [&](const char* name, double v) {
    dict.add(name, scalar_tensor(v, {.dtype = DType::kF64}));
  };
  const auto whole = [&](const char* name, int64_t v) {
    dict.add(name, scalar_tensor(v, {.dtype = DType::kI64}));
  };
  real("scale", scale_);
  real("growth_factor", options_.growth_factor);
  real("backoff_factor", options_.backoff_factor);
  whole("growth_interval", options_.growth_interval);
  whole("_growth_tracker", growth_tracker_);
  whole("hysteresis", options_.hysteresis);
  whole("_hysteresis_tracker", hysteresis_tracker_);
  real("min_scale", options_.min_scale);
  return dict;
}

void GradScaler::load_state_dict(const TensorDict& dict) {
  if (!options_.enabled) return;
  GradScaler loaded = *this;
  std::string missing;
  const auto read = [&](const char* name, auto& value) {
    const Tensor* t = dict.find(name);
    if (t && t->defined() && t->numel() == 1) {
      value = t->item<std::decay_t<decltype(value)>>();
    } else {
      missing += std::string(missing.empty() ? "" : ", ") + name;
    }
  };
  read("scale", loaded.scale_);
  read("growth_factor", loaded.options_.growth_factor);
  read("backoff_factor", loaded.options_.backoff_factor);
  read("growth_interval", loaded.options_.growth_interval);
  read("_growth_tracker", loaded.growth_tracker_);
  const auto here = [&](const char* name) { return dict.contains(name); };
  if (here("hysteresis") || here("_hysteresis_tracker") || here("min_scale")) {
    read("hysteresis", loaded.options_.hysteresis);
    read("_hysteresis_tracker", loaded.hysteresis_tracker_);
    read("min_scale", loaded.options_.min_scale);
  } else {
    const GradScalerOptions defaults;
    loaded.options_.hysteresis = loaded.hysteresis_tracker_ = defaults.hysteresis;
    loaded.options_.min_scale = defaults.min_scale;
  }
  TARN_CHECK_AS(ValueError, missing.empty(), "GradScaler: the state lacks ", missing);
  check_scale("GradScaler", loaded.scale_);
  GradScalerOptions options = loaded.options_;
  options.init_scale = std::max(loaded.scale_, options.min_scale);
  checked(options);
  loaded.states_.clear();
  *this = std::move(loaded);
}

}  // namespace tarn::optim
