// ops_norm.cpp - batch, group and instance norm, with their gradients.
//
// The gradients are fused kernels. Under create_graph they are written in recorded operations
// instead, with the statistics taken again so that they are on the tape.
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/composed_norm.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/recompute.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_norm.h"
#include "tarn/core/raw_reduce.h"
#include "tarn/core/views.h"

namespace tarn {

NormGrads composed_norm_backward(const Tensor& g, const Tensor& x, const Tensor& weight,
                                 const Shape& dims, double eps, NormStatistics statistics,
                                 const Tensor& mean_in, const Tensor& rstd_in,
                                 const std::function<Tensor(const Tensor&)>& mean_of) {
  const auto mean_over = [&](const Tensor& t) {
    return mean_of ? mean_of(t) : mean(t, dims, true);
  };
  const bool fixed = statistics == NormStatistics::kFixed;
  Tensor centred = x;
  if (fixed) centred = sub(x, mean_in);
  if (statistics == NormStatistics::kCentred) centred = sub(x, mean_over(x));
  const Tensor rstd = fixed ? rstd_in : rsqrt(add(mean_over(square(centred)), eps));
  const Tensor xhat = mul(centred, rstd);
  NormGrads out;
  out.weight = mul(g, xhat);
  out.bias = g;
  const Tensor gw = weight.defined() ? mul(g, weight) : g;
  if (fixed) {
    out.x = mul(gw, rstd);
    return out;
  }
  Tensor inner = sub(gw, mul(xhat, mean_over(mul(gw, xhat))));
  if (statistics == NormStatistics::kCentred) inner = sub(inner, mean_over(gw));
  out.x = mul(rstd, inner);
  return out;
}

namespace {

// [C] -> [1, C, 1, ...].
Tensor over_channels(const Tensor& t, int ndim) {
  if (!t.defined()) return t;
  Shape sizes = Shape::filled(ndim, 1);
  sizes[1] = t.size(0);
  return reshape(t, sizes);
}

Shape all_but_channels(int ndim) {
  Shape dims;
  for (int d = 0; d < ndim; ++d) {
    if (d != 1) dims.push_back(d);
  }
  return dims;
}

struct BatchNormRecord {
  bool relu, training, residual;
  double eps;
  DType weight_dtype, bias_dtype;
};

// Saved: x, weight, bias, mean, rstd, y (only where the relu's mask needs it).
Grads batch_norm_composed(const Saved& s, const Tensor& g_in, const BatchNormRecord& r, Wants w) {
  const Tensor x = s[0];
  const int n = x.dim();
  Tensor g = g_in;
  const Tensor stat_mean = over_channels(s[3], n), stat_rstd = over_channels(s[4], n);
  if (r.relu) {
    Tensor y = s[5];
    if (!y.defined()) {
      y = raw::batch_norm_eval(x, s[1], s[2], {}, false, s[3], s[4]);
    }
    g = masked_fill(g, raw::le(y, Scalar(0)), 0);
  }
  const NormGrads grads = composed_norm_backward(
      g, x, over_channels(s[1], n), all_but_channels(n), r.eps,
      r.training ? NormStatistics::kCentred : NormStatistics::kFixed, stat_mean, stat_rstd);
  const auto per_channel = [&](const Tensor& t, DType dtype) {
    return to(sum(t, all_but_channels(n)), dtype);
  };
  return Grads(w[0] ? to(grads.x, x.dtype()) : Tensor(),
               w[1] ? per_channel(grads.weight, r.weight_dtype) : Tensor(),
               w[2] ? per_channel(grads.bias, r.bias_dtype) : Tensor(), w[3] ? g : Tensor());
}

Grads batch_norm_gradient(const Saved& s, const Tensor& g, const BatchNormRecord& r, Wants w) {
  if (grad_enabled()) return batch_norm_composed(s, g, r, w);
  raw::BatchNormGrads grads =
      raw::batch_norm_backward(to(g, s[0].dtype()), s[0], s[5], s[1], s[2], s[3], s[4], r.relu,
                               r.training, w[0], w[1] || w[2], r.residual && (w[3] || r.relu));
  return Grads(grads.x, w[1] ? grads.weight : Tensor(), w[2] ? grads.bias : Tensor(),
               w[3] ? grads.residual : Tensor());
}

// running += momentum * (now - running), for one or both statistics in one kernel.
void move_running(std::vector<Tensor> running, std::vector<Tensor> now, double momentum) {
  if (is_recomputing()) return;  // the first run has moved them
  for (size_t i = running.size(); i-- > 0;) {
    if (running[i].defined()) continue;
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    now.erase(now.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (running.empty()) return;
  std::vector<Tensor> dense;
  for (size_t i = 0; i < now.size(); ++i) {
    dense.push_back(raw::contiguous(running[i]));
    now[i] = raw::contiguous(raw::to(now[i], running[i].dtype()));
  }
  TARN_KERNEL(optim, lerp, dense[0].device(), dense, now, momentum);
  for (size_t i = 0; i < now.size(); ++i) {
    dense[i].is_same(running[i]) ? running[i].bump_version() : raw::copy_(running[i], dense[i]);
  }
}

void update_running(const Tensor& x, const Tensor& mean, const Tensor& var,
                    const Tensor& running_mean, const Tensor& running_var, double momentum) {
  if (x.numel() == 0) return;
  const double n = static_cast<double>(x.numel() / x.size(1));
  const Tensor unbiased = raw::unary(UnaryOp::kMulScalar, var, {{n / (n - 1)}});
  move_running({running_mean, running_var}, {mean, unbiased}, momentum);
}

DType dtype_or(const Tensor& t, DType otherwise) {
  return t.defined() ? t.dtype() : otherwise;
}

}  // namespace

Tensor batch_norm_act(const Tensor& x, const Tensor& residual, const Tensor& running_mean,
                      const Tensor& running_var, const Tensor& weight, const Tensor& bias,
                      const BatchNormOptions& o) {
  // Halves stay halves: the statistics are f32 in any case.
  if (residual.defined() && residual.dtype() != x.dtype()) {
    if (const auto c = cast(CastPolicy::kPromote, x, residual)) {
      return batch_norm_act(c[0], c[1], running_mean, running_var, weight, bias, o);
    }
  }
  raw::check_batch_norm("batch_norm", x, weight, bias, running_mean, running_var, residual);
  TARN_CHECK_AS(ValueError, o.training || (running_mean.defined() && running_var.defined()),
                "batch_norm: evaluation needs running_mean and running_var");
  Tensor y, mean, rstd;
  if (o.training) {
    raw::BatchNormResult r = raw::batch_norm_train(x, weight, bias, residual, o.relu, o.eps);
    update_running(x, r.mean, r.var, running_mean, running_var, o.momentum);
    y = r.y, mean = r.mean, rstd = r.rstd;
  } else {
    const DType stats = accumulate_dtype(x.dtype());
    mean = raw::clone(raw::to(running_mean, stats));  // a later training step writes to it
    rstd = raw::unary(UnaryOp::kRsqrt, raw::add(raw::to(running_var, stats), Scalar(o.eps)));
    y = raw::batch_norm_eval(x, weight, bias, residual, o.relu, mean, rstd);
  }
  const BatchNormRecord r{o.relu,
                          o.training,
                          residual.defined(),
                          o.eps,
                          dtype_or(weight, x.dtype()),
                          dtype_or(bias, x.dtype())};
  const Tensor kept = o.relu && residual.defined() ? y : Tensor();
  return record(
      "batch_norm", y, {x, weight, bias, residual}, save(x, weight, bias, mean, rstd, kept),
      [r](const Saved& s, const Tensor& g, Wants w) { return batch_norm_gradient(s, g, r, w); });
}

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum,
                  double eps) {
  return batch_norm_act(x, {}, running_mean, running_var, weight, bias,
                        {.training = training, .momentum = momentum, .eps = eps});
}

namespace {

// Halves take their affine step in f32: rounded before it, f32 weights and the products that their
// gradients sum would be those of a half.
DType affine_dtype(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return weight.defined() || bias.defined() ? accumulate_dtype(x.dtype()) : x.dtype();
}

Tensor scaled_per_channel(Tensor y, const Tensor& weight, const Tensor& bias, DType dtype) {
  if (weight.defined()) y = mul(y, to(over_channels(weight, y.dim()), y.dtype()));
  if (bias.defined()) y = add(y, to(over_channels(bias, y.dim()), y.dtype()));
  return to(y, dtype);
}

// Layer norm without weights over rows of this length, then the affine step per channel.
Tensor norm_of_rows(const Tensor& x, int64_t length, const Tensor& weight, const Tensor& bias,
                    double eps) {
  const Tensor wide = to(x, affine_dtype(x, weight, bias));
  const Tensor rows =
      layer_norm(reshape(wide, {x.numel() / length, length}), {length}, {}, {}, eps);
  return scaled_per_channel(reshape(rows, x.sizes()), weight, bias, x.dtype());
}

}  // namespace

Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  if (const auto c = cast(CastPolicy::kF32, x, weight, bias)) {
    return group_norm(c[0], groups, c[1], c[2], eps);
  }
  raw::check_batch_norm("group_norm", x, weight, bias, {}, {}, {});
  TARN_CHECK_AS(ShapeError, groups > 0 && x.size(1) % groups == 0,
                "group_norm: groups must divide the channels; got groups=", groups,
                ", x=", x.describe());
  if (x.numel() == 0) return scaled_per_channel(mul(x, 1), weight, bias, x.dtype());
  return norm_of_rows(x, x.numel() / x.size(0) / groups, weight, bias, eps);
}

Tensor instance_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                     const Tensor& weight, const Tensor& bias, bool use_input_stats,
                     double momentum, double eps) {
  raw::check_batch_norm("instance_norm", x, weight, bias, running_mean, running_var, {});
  if (!use_input_stats) {
    return batch_norm(x, running_mean, running_var, weight, bias, false, momentum, eps);
  }
  const int64_t batch = x.size(0), channels = x.size(1);
  if (x.numel() == 0) return scaled_per_channel(mul(x, 1), weight, bias, x.dtype());
  const int64_t length = x.numel() / (batch * channels);
  TARN_CHECK_AS(ValueError, length > 1,
                "instance_norm: needs more than one value per channel; got x=", x.describe());
  if (running_mean.defined() || running_var.defined()) {
    const Tensor wide = raw::to(x, accumulate_dtype(x.dtype()));
    const Tensor planes = raw::reshape(wide, {batch, channels, length});
    const auto [var, mean] = raw::var_mean("instance_norm", planes, {2}, 1, false, true, true);
    const auto over_batch = [](const Tensor& t) {
      return raw::reduce("instance_norm", ReduceOp::kMean, t, {0}, false, t.dtype());
    };
    move_running({running_mean, running_var}, {over_batch(mean), over_batch(var)}, momentum);
  }
  return norm_of_rows(x, length, weight, bias, eps);
}

}  // namespace tarn
