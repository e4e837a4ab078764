// raw_norm.cpp - checks, layouts and allocation for batch norm and layer norm.
#include "tarn/core/raw_norm.h"

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn::raw {
namespace {

// Kernels take channels_last as it is and everything else row-major.
MemoryFormat format_of(const Tensor& x) {
  const bool last = !x.is_contiguous() && x.is_contiguous(MemoryFormat::kChannelsLast);
  return last ? MemoryFormat::kChannelsLast : MemoryFormat::kContiguous;
}

Tensor dense(const Tensor& x) {
  return x.defined() ? contiguous(x) : x;
}

Tensor per_channel(const Tensor& x, DType dtype) {
  return empty({x.size(1)}, {.dtype = dtype, .device = x.device()});
}

void check_channels(const char* op, const char* name, const Tensor& t, const Tensor& x) {
  if (!t.defined()) return;
  check_same_device(op, x, t);
  TARN_CHECK_AS(ShapeError, t.sizes() == Shape{x.size(1)}, op, ": ", name, " must be [C] = [",
                x.size(1), "]; got ", name, "=", t.describe(), ", x=", x.describe());
  TARN_CHECK_AS(DTypeError, t.dtype() == x.dtype() || t.dtype() == DType::kF32, op, ": ", name,
                " must be f32 or of x's dtype; got ", name, "=", t.describe(),
                ", x=", x.describe());
}

}  // namespace

void check_residual(const char* op, const Tensor& x, const Tensor& residual) {
  check_defined(op, "residual", residual);
  check_same_device(op, x, residual);
  TARN_CHECK_AS(ShapeError, residual.sizes() == x.sizes(), op,
                ": residual must have x's sizes; got x=", x.describe(),
                ", residual=", residual.describe());
  TARN_CHECK_AS(DTypeError, residual.dtype() == x.dtype(), op,
                ": residual must have x's dtype; got x=", x.describe(),
                ", residual=", residual.describe());
}

void check_batch_norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& running_mean, const Tensor& running_var,
                      const Tensor& residual) {
  check_defined(op, "x", x);
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()), op,
                ": x must be floating; got x=", x.describe());
  TARN_CHECK_AS(ShapeError, x.dim() >= 2, op, ": x must be [N, C, ...]; got x=", x.describe());
  check_channels(op, "weight", weight, x);
  check_channels(op, "bias", bias, x);
  check_channels(op, "running_mean", running_mean, x);
  check_channels(op, "running_var", running_var, x);
  if (residual.defined()) check_residual(op, x, residual);
}

BatchNormResult batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                 const Tensor& residual, bool relu, double eps) {
  const OpScope scope("batch_norm");
  const DType stats = accumulate_dtype(x.dtype());
  const MemoryFormat format = format_of(x);
  const Tensor y = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device(), .format = format});
  if (x.numel() == 0) {
    const Tensor none = zeros({x.size(1)}, {.dtype = stats, .device = x.device()});
    return {y, none, none, none};
  }
  TARN_CHECK_AS(ValueError, x.numel() / x.size(1) > 1,
                "batch_norm: training needs more than one value per channel; got x=", x.describe());
  BatchNormResult r{y, per_channel(x, stats), per_channel(x, stats), per_channel(x, stats)};
  TARN_KERNEL(norm, batch_norm_train, x.device(), contiguous(x, format), dense(weight), dense(bias),
              residual.defined() ? contiguous(residual, format) : residual, relu, eps, r.y, r.mean,
              r.rstd, r.var);
  return r;
}

Tensor batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const Tensor& residual, bool relu, const Tensor& mean, const Tensor& rstd) {
  const OpScope scope("batch_norm");
  const MemoryFormat format = format_of(x);
  Tensor y = empty(x.sizes(), {.dtype = x.dtype(), .device = x.device(), .format = format});
  if (x.numel() == 0) return y;
  TARN_KERNEL(norm, batch_norm_eval, x.device(), contiguous(x, format), dense(weight), dense(bias),
              residual.defined() ? contiguous(residual, format) : residual, relu, mean, rstd, y);
  return y;
}

BatchNormGrads batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& y,
                                   const Tensor& weight, const Tensor& bias, const Tensor& mean,
                                   const Tensor& rstd, bool relu, bool training, bool want_x,
                                   bool want_affine, bool want_residual) {
  const OpScope scope("batch_norm_backward");
  const MemoryFormat format = format_of(x);
  const TensorOptions like_x{.dtype = x.dtype(), .device = x.device(), .format = format};
  const Tensor g = contiguous(gy, format);
  BatchNormGrads out;
  if (want_x) out.x = empty(x.sizes(), like_x);
  if (want_affine) {
    out.weight = per_channel(x, weight.defined() ? weight.dtype() : mean.dtype());
    out.bias = per_channel(x, bias.defined() ? bias.dtype() : mean.dtype());
  }
  if (want_residual) out.residual = relu ? empty(x.sizes(), like_x) : g;
  if (x.numel() == 0) {
    if (want_affine) fill_(out.weight, 0), fill_(out.bias, 0);
    return out;
  }
  TARN_KERNEL(norm, batch_norm_backward, x.device(), g, contiguous(x, format),
              y.defined() ? contiguous(y, format) : y, dense(weight), dense(bias), mean, rstd, relu,
              training, out.x, out.weight, out.bias, relu ? out.residual : Tensor());
  return out;
}

LayerNormResult layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                           RowNorm kind, const Tensor& residual) {
  const bool layer = kind == RowNorm::kLayer;
  const OpScope scope(residual.defined() ? (layer ? "add_layer_norm" : "add_rms_norm")
                                         : (layer ? "layer_norm" : "rms_norm"));
  const TensorOptions like_x{.dtype = x.dtype(), .device = x.device()};
  const TensorOptions stats{.dtype = accumulate_dtype(x.dtype()), .device = x.device()};
  LayerNormResult r;
  r.y = empty(x.sizes(), like_x);
  r.rstd = empty({x.size(0)}, stats);
  if (layer) r.mean = empty({x.size(0)}, stats);
  if (residual.defined()) r.sum = empty(x.sizes(), like_x);
  if (x.numel() > 0) {
    TARN_KERNEL(norm, layer_norm, x.device(), contiguous(x), dense(residual), dense(weight),
                dense(bias), eps, r.sum, r.y, r.mean, r.rstd);
  }
  return r;
}

LayerNormGrads layer_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& weight,
                                   const Tensor& mean, const Tensor& rstd, bool want_x,
                                   bool want_weight, bool want_bias, const Tensor& gsum) {
  const OpScope scope(mean.defined() ? "layer_norm_backward" : "rms_norm_backward");
  const TensorOptions like_x{.dtype = x.dtype(), .device = x.device()};
  const TensorOptions affine{.dtype = weight.defined() ? weight.dtype() : rstd.dtype(),
                             .device = x.device()};
  LayerNormGrads out;
  if (want_x) out.x = empty(x.sizes(), like_x);
  if (want_weight) out.weight = zeros({x.size(1)}, affine);
  if (want_bias) out.bias = zeros({x.size(1)}, affine);
  if (x.numel() > 0) {
    TARN_KERNEL(norm, layer_norm_backward, x.device(), contiguous(gy), dense(gsum), contiguous(x),
                dense(weight), mean, rstd, out.x, out.weight, out.bias);
  }
  return out;
}

}  // namespace tarn::raw
