// ops_row_norm.cpp - layer norm and RMS norm, plain or of a sum, with their gradients.
//
// The gradients are fused kernels; under create_graph recorded operations.
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/composed_norm.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_norm.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

using raw::RowNorm;

/// What a backward formula needs beside tensors. x is seen as [rows, width].
struct RowNormRecord {
  Shape sizes, normalized;
  int64_t rows, width;
  double eps;
  RowNorm kind;
  DType weight_dtype, bias_dtype;

  Tensor matrix(const Tensor& t) const { return reshape(t, {rows, width}); }
};

void check_affine(const char* op, const char* name, const Tensor& x, const Tensor& t,
                  const Shape& normalized) {
  if (!t.defined()) return;
  raw::check_same_device(op, x, t);
  TARN_CHECK_AS(ShapeError, t.sizes() == normalized, op, ": ", name,
                " must have the normalized sizes ", normalized, "; got ", name, "=", t.describe());
  TARN_CHECK_AS(DTypeError, t.dtype() == x.dtype() || t.dtype() == DType::kF32, op, ": ", name,
                " must be f32 or of x's dtype; got ", name, "=", t.describe(),
                ", x=", x.describe());
}

RowNormRecord row_norm_record(const char* op, const Tensor& x, const Shape& normalized,
                              const Tensor& weight, const Tensor& bias, double eps, RowNorm kind) {
  raw::check_defined(op, "x", x);
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()), op,
                ": x must be floating; got x=", x.describe());
  const int extra = x.dim() - normalized.dim();
  bool fits = extra >= 0 && normalized.dim() > 0;
  for (int d = 0; fits && d < normalized.dim(); ++d) fits = x.sizes()[extra + d] == normalized[d];
  TARN_CHECK_AS(ShapeError, fits, op, ": x must end in the normalized sizes; got x=", x.describe(),
                ", normalized=", normalized);
  check_affine(op, "weight", x, weight, normalized);
  check_affine(op, "bias", x, bias, normalized);
  int64_t rows = 1;
  for (int d = 0; d < extra; ++d) rows *= x.sizes()[d];
  const auto dtype_or = [&](const Tensor& t) { return t.defined() ? t.dtype() : x.dtype(); };
  return {x.sizes(), normalized,       rows,          normalized.numel(), eps,
          kind,      dtype_or(weight), dtype_or(bias)};
}

/// x: what was normalised. gsum: what its other uses bring, or undefined.
NormGrads row_norm_gradient(const Tensor& gy, const Tensor& gsum, const Tensor& x_in,
                            const Tensor& weight_in, const Tensor& mean, const Tensor& rstd,
                            const RowNormRecord& r, bool want_x, bool want_weight, bool want_bias) {
  const Tensor x = r.matrix(x_in), g = r.matrix(to(gy, x.dtype()));
  const Tensor weight = weight_in.defined() ? reshape(weight_in, {r.width}) : Tensor();
  NormGrads out;
  if (grad_enabled()) {
    const auto statistics =
        r.kind == RowNorm::kLayer ? NormStatistics::kCentred : NormStatistics::kUncentred;
    const DType wide = accumulate_dtype(x.dtype());
    const NormGrads full = composed_norm_backward(to(g, wide), to(x, wide),
                                                  weight.defined() ? to(weight, wide) : weight,
                                                  {-1}, r.eps, statistics);
    out = {to(full.x, x.dtype()), sum(full.weight, {0}), sum(full.bias, {0})};
    if (gsum.defined()) out.x = add(out.x, r.matrix(to(gsum, x.dtype())));
  } else {
    const raw::LayerNormGrads fused =
        raw::layer_norm_backward(g, x, weight, mean, rstd, want_x, want_weight, want_bias,
                                 gsum.defined() ? r.matrix(to(gsum, x.dtype())) : Tensor());
    out = {fused.x, fused.weight, fused.bias};
  }
  return {want_x ? reshape(out.x, r.sizes) : Tensor(),
          want_weight ? to(reshape(out.weight, r.normalized), r.weight_dtype) : Tensor(),
          want_bias ? to(reshape(out.bias, r.normalized), r.bias_dtype) : Tensor()};
}

raw::LayerNormResult run(const RowNormRecord& r, const Tensor& x, const Tensor& weight,
                         const Tensor& bias, const Tensor& residual = {}) {
  const auto flat = [](const Tensor& t, const Shape& sizes) {
    return t.defined() ? raw::reshape(t, sizes) : t;
  };
  return raw::layer_norm(raw::reshape(x, {r.rows, r.width}), flat(weight, {r.width}),
                         flat(bias, {r.width}), r.eps, r.kind, flat(residual, {r.rows, r.width}));
}

Tensor row_norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const RowNormRecord& r) {
  const raw::LayerNormResult done = run(r, x, weight, bias);
  return record(op, raw::resized_result(done.y, x.sizes()), {x, weight, bias},
                save(x, weight, done.mean, done.rstd),
                [r](const Saved& s, const Tensor& g, Wants w) {
                  const NormGrads grads =
                      row_norm_gradient(g, {}, s[0], s[1], s[2], s[3], r, w[0], w[1], w[2]);
                  return Grads(grads.x, grads.weight, grads.bias);
                });
}

/// The same of x + residual.
AddNormResult add_row_norm(const char* op, const Tensor& x, const Tensor& residual,
                           const Tensor& weight, const Tensor& bias, const RowNormRecord& r) {
  raw::check_residual(op, x, residual);
  const raw::LayerNormResult done = run(r, x, weight, bias, residual);
  const Tensor outs[] = {raw::resized_result(done.sum, x.sizes()),
                         raw::resized_result(done.y, x.sizes())};
  record_outputs(op, outs, {x, residual, weight, bias}, save(outs[0], weight, done.mean, done.rstd),
                 [r](const Saved& s, std::span<const Tensor> g, Wants w) {
                   if (!g[1].defined()) return Grads(g[0], g[0], Tensor(), Tensor());
                   const NormGrads grads = row_norm_gradient(g[1], g[0], s[0], s[1], s[2], s[3], r,
                                                             w[0] || w[1], w[2], w[3]);
                   return Grads(grads.x, grads.x, grads.weight, grads.bias);
                 });
  return {outs[0], outs[1]};
}

/// The last dimension, once weight is known to be of its size.
Shape rms_sizes(const char* op, const Tensor& x, const Tensor& weight) {
  raw::check_defined(op, "x", x);
  TARN_CHECK_AS(ShapeError,
                x.dim() > 0 && (!weight.defined() || weight.sizes() == Shape{x.sizes().back()}), op,
                ": weight must be [D] for x [..., D]; got x=", x.describe(),
                ", weight=", weight.describe());
  return {x.sizes().back()};
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& normalized, const Tensor& weight,
                  const Tensor& bias, double eps) {
  if (const auto c = cast(CastPolicy::kF32, x, weight, bias)) {
    return layer_norm(c[0], normalized, c[1], c[2], eps);
  }
  constexpr const char* op = "layer_norm";
  return row_norm(op, x, weight, bias,
                  row_norm_record(op, x, normalized, weight, bias, eps, RowNorm::kLayer));
}

AddNormResult add_layer_norm(const Tensor& x, const Tensor& residual, const Shape& normalized,
                             const Tensor& weight, const Tensor& bias, double eps) {
  constexpr const char* op = "add_layer_norm";
  if (const auto c = cast(CastPolicy::kPromote, x, residual)) {
    return add_layer_norm(c[0], c[1], normalized, weight, bias, eps);
  }
  raw::check_defined(op, "x", x);
  if (widened_dtype(x) != x.dtype()) {  // a sum of halves is one, its norm is not
    raw::check_residual(op, x, residual);
    const Tensor sum = add(x, residual);
    return {sum, layer_norm(sum, normalized, weight, bias, eps)};
  }
  if (const auto c = cast(CastPolicy::kF32, weight, bias)) {
    return add_layer_norm(x, residual, normalized, c[0], c[1], eps);
  }
  return add_row_norm(op, x, residual, weight, bias,
                      row_norm_record(op, x, normalized, weight, bias, eps, RowNorm::kLayer));
}

// Keeps halves under autocast, and computes in f32.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  if (const auto c = cast(CastPolicy::kF32, weight)) return rms_norm(x, c[0], eps);
  constexpr const char* op = "rms_norm";
  const Shape last = rms_sizes(op, x, weight);
  return row_norm(op, x, weight, {}, row_norm_record(op, x, last, weight, {}, eps, RowNorm::kRms));
}

AddNormResult add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                           double eps) {
  constexpr const char* op = "add_rms_norm";
  if (const auto c = cast(CastPolicy::kPromote, x, residual)) {
    return add_rms_norm(c[0], c[1], weight, eps);
  }
  if (const auto c = cast(CastPolicy::kF32, weight)) return add_rms_norm(x, residual, c[0], eps);
  const Shape last = rms_sizes(op, x, weight);
  return add_row_norm(op, x, residual, weight, {},
                      row_norm_record(op, x, last, weight, {}, eps, RowNorm::kRms));
}

}  // namespace tarn
