// norm.cpp - normalisation layers.
#include "tarn/nn/norm.h"

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/recompute.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/nn/init.h"

namespace tarn::nn {
namespace {

/// Memory filled with `value`; none unless wanted.
Tensor filled_if(bool wanted, const Shape& sizes, double value) {
  if (!wanted) return {};
  Tensor x = parameter_memory(sizes);
  init::constant_(x, value);
  return x;
}

const BatchNormOptions& checked(const BatchNormOptions& o) {
  TARN_CHECK_AS(ValueError, o.features > 0, "BatchNorm: features must be positive; got ",
                o.features);
  return o;
}

const RmsNormOptions& checked(const RmsNormOptions& o) {
  TARN_CHECK_AS(ValueError, o.size > 0, "RMSNorm: size must be positive; got ", o.size);
  return o;
}

/// Whether add_layer_norm and its like take these. Sums that broadcast, or promote without
/// autocast, are left to +.
bool sum_fuses(const Tensor& x, const Tensor& residual) {
  if (x.sizes() != residual.sizes()) return false;
  return x.dtype() == residual.dtype() || (autocast_enabled(x.device().type) &&
                                           is_floating(x.dtype()) && is_floating(residual.dtype()));
}

AddNormResult add_in_two_steps(Module& norm, const Tensor& x, const Tensor& residual) {
  const Tensor sum = x + residual;
  return {sum, norm(sum)};
}

}  // namespace

BatchNorm::BatchNorm(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", filled_if(o.affine, {checked(o).features}, 1)),
      bias(this, "bias", filled_if(o.affine, {o.features}, 0)),
      running_mean(this, "running_mean", filled_if(o.track_running_stats, {o.features}, 0)),
      running_var(this, "running_var", filled_if(o.track_running_stats, {o.features}, 1)),
      // Missing from files written before PyTorch 0.4.1.
      num_batches_tracked(this, "num_batches_tracked",
                          o.track_running_stats ? zeros({}, {.dtype = DType::kI64}) : Tensor(),
                          BufferKind::kOptional),
      options_(o) {}

Tensor BatchNorm::run(const Tensor& x, const Tensor& residual, bool relu) {
  check(x);
  const bool tracks = options_.track_running_stats;
  double momentum = options_.momentum.value_or(0);
  if (training() && tracks && !is_recomputing()) {
    if (num_batches_tracked.device().is_cpu()) {  // a whole operation per layer and step otherwise
      ++*num_batches_tracked.data<int64_t>();
      num_batches_tracked.bump_version();
    } else {
      raw::unary_(UnaryOp::kAddScalar, num_batches_tracked, {{1}});
    }
    if (!options_.momentum) momentum = 1 / num_batches_tracked.item();
  }
  // Without running statistics evaluation normalises by the batch too.
  const tarn::BatchNormOptions options{
      .training = training() || !tracks, .momentum = momentum, .eps = options_.eps, .relu = relu};
  if (function_ && options.training) {
    return function_(x, residual, running_mean, running_var, weight, bias, options);
  }
  return batch_norm_act(x, residual, running_mean, running_var, weight, bias, options);
}

Tensor BatchNorm::relu(const Tensor& x) {
  const CallScope scope(*this);
  return is_watched() ? tarn::relu((*this)(x)) : run(x, {}, true);
}

Tensor BatchNorm::add_relu(const Tensor& x, const Tensor& residual) {
  const CallScope scope(*this);
  return is_watched() ? tarn::relu((*this)(x) + residual) : run(x, residual, true);
}

std::string BatchNorm::details() const {
  return std::to_string(options_.features);
}

void BatchNorm1d::check(const Tensor& x) const {
  TARN_CHECK_AS(ShapeError, x.dim() == 2 || x.dim() == 3,
                "BatchNorm1d: x must be [N, C] or [N, C, L]; got x=", x.describe());
}

void BatchNorm2d::check(const Tensor& x) const {
  TARN_CHECK_AS(ShapeError, x.dim() == 4,
                "BatchNorm2d: x must be [N, C, H, W]; got x=", x.describe());
}

LayerNorm::LayerNorm(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", filled_if(o.affine, o.shape, 1)),
      bias(this, "bias", filled_if(o.affine && o.bias, o.shape, 0)),
      options_(o) {}

Tensor LayerNorm::forward(const Tensor& x) {
  return tarn::layer_norm(x, options_.shape, weight, bias, options_.eps);
}

AddNormResult LayerNorm::add(const Tensor& x, const Tensor& residual) {
  const CallScope scope(*this);
  if (is_watched() || !sum_fuses(x, residual)) return add_in_two_steps(*this, x, residual);
  return tarn::add_layer_norm(x, residual, options_.shape, weight, bias, options_.eps);
}

std::string LayerNorm::details() const {
  return tarn::detail::concat(options_.shape);
}

RMSNorm::RMSNorm(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", filled_if(true, {checked(o).size}, 1)),
      options_(o) {}

Tensor RMSNorm::forward(const Tensor& x) {
  return tarn::rms_norm(x, weight, options_.eps);
}

AddNormResult RMSNorm::add(const Tensor& x, const Tensor& residual) {
  const CallScope scope(*this);
  if (is_watched() || !sum_fuses(x, residual)) return add_in_two_steps(*this, x, residual);
  return tarn::add_rms_norm(x, residual, weight, options_.eps);
}

std::string RMSNorm::details() const {
  return std::to_string(options_.size);
}

GroupNorm::GroupNorm(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      weight(this, "weight", filled_if(o.affine, {o.channels}, 1)),
      bias(this, "bias", filled_if(o.affine, {o.channels}, 0)),
      options_(o) {
  TARN_CHECK_AS(ValueError, o.groups > 0 && o.channels > 0 && o.channels % o.groups == 0,
                "GroupNorm: channels must be a multiple of groups; got groups=", o.groups,
                ", channels=", o.channels);
}

Tensor GroupNorm::forward(const Tensor& x) {
  return tarn::group_norm(x, options_.groups, weight, bias, options_.eps);
}

std::string GroupNorm::details() const {
  return tarn::detail::concat(options_.groups, ", ", options_.channels);
}

}  // namespace tarn::nn
