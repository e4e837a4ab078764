// raw_attention.cpp - checks, layouts and allocation for attention.
#include "tarn/core/raw_attention.h"

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::raw {
namespace {

Tensor dense_last(const Tensor& x) {
  return x.strides()[3] == 1 || x.size(3) == 1 ? x : contiguous(x);
}

/// [B, H, T, E], in memory as `like` has its heads and time.
Tensor empty_heads(const Shape& sizes, const Tensor& like) {
  Shape strides = contiguous_strides(sizes);
  if (like.strides()[1] < like.strides()[2]) {
    strides[1] = sizes[3];
    strides[2] = sizes[1] * sizes[3];
  }
  return empty_strided(sizes, strides, {.dtype = like.dtype(), .device = like.device()});
}

}  // namespace

void check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& mask, bool gqa) {
  TARN_CHECK_AS(ShapeError, q.dim() == 4 && k.dim() == 4 && v.dim() == 4, op,
                ": q, k and v must be [B, H, T, D]; got q=", q.describe(), ", k=", k.describe(),
                ", v=", v.describe());
  TARN_CHECK_AS(DTypeError,
                is_floating(q.dtype()) && q.dtype() == k.dtype() && q.dtype() == v.dtype(), op,
                ": q, k and v must be floating and of one dtype; got q=", q.describe(),
                ", k=", k.describe(), ", v=", v.describe());
  check_same_device(op, q, k);
  check_same_device(op, q, v);
  TARN_CHECK_AS(ShapeError,
                q.size(0) == k.size(0) && k.size(0) == v.size(0) && k.size(1) == v.size(1) &&
                    k.size(2) == v.size(2) && q.size(3) == k.size(3),
                op, ": k must be [B, H, S, D] and v [B, H, S, E] for q [B, H, T, D]; got q=",
                q.describe(), ", k=", k.describe(), ", v=", v.describe());
  const int64_t heads = q.size(1), groups = k.size(1);
  TARN_CHECK_AS(ShapeError, gqa || heads == groups, op,
                ": q, k and v must have equally many heads; got q=", q.describe(),
                ", k=", k.describe(), "; pass enable_gqa = true for grouped queries");
  TARN_CHECK_AS(ShapeError, groups > 0 ? heads % groups == 0 : heads == 0, op,
                ": the heads of q must be a multiple of those of k; got q=", q.describe(),
                ", k=", k.describe());
  if (!mask.defined()) return;
  check_same_device(op, q, mask);
  TARN_CHECK_AS(DTypeError, mask.dtype() == DType::kBool || is_floating(mask.dtype()), op,
                ": mask must be bool (true attends) or floating (added to the scores); got mask=",
                mask.describe());
  const Shape scores{q.size(0), heads, q.size(2), k.size(2)};
  bool fits = mask.dim() <= 4;
  for (int d = 0; fits && d < mask.dim(); ++d) {
    const int64_t n = mask.sizes()[d];
    fits = n == 1 || n == scores[d + 4 - mask.dim()];
  }
  TARN_CHECK_AS(ShapeError, fits, op, ": mask must broadcast to [B, H, T, S] = ", scores,
                "; got mask=", mask.describe());
}

AttentionCall attention_call(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                             double scale, bool causal, double dropout, PhiloxState state) {
  AttentionCall call{.q = dense_last(q),
                     .k = dense_last(k),
                     .v = dense_last(v),
                     .mask = {},
                     .scale = scale,
                     .causal = causal,
                     .dropout = dropout,
                     .state = state};
  if (mask.defined()) {
    const DType dtype = mask.dtype() == DType::kBool ? DType::kBool : accumulate_dtype(q.dtype());
    call.mask = expand(to(mask, dtype), {q.size(0), q.size(1), q.size(2), k.size(2)});
  }
  return call;
}

AttentionResult scaled_dot_product_attention(const AttentionCall& call) {
  const OpScope scope("scaled_dot_product_attention");
  const Tensor& q = call.q;
  const Shape rows{q.size(0), q.size(1), q.size(2)};
  AttentionResult r{empty_heads({rows[0], rows[1], rows[2], call.v.size(3)}, q),
                    empty(rows, {.dtype = accumulate_dtype(q.dtype()), .device = q.device()})};
  if (r.out.numel() > 0) {
    TARN_KERNEL(attention, scaled_dot_product_attention, q.device(), call, r.out, r.logsumexp);
  }
  return r;
}

void scaled_dot_product_attention_backward(const AttentionCall& call, const Tensor& out,
                                           const Tensor& logsumexp, const Tensor& gout,
                                           const Tensor& gq, const Tensor& gk, const Tensor& gv) {
  const OpScope scope("scaled_dot_product_attention_backward");
  if (out.numel() == 0 || call.v.numel() == 0) {
    for (const Tensor* g : {&gq, &gk, &gv}) fill_(*g, 0.0);
    return;
  }
  TARN_KERNEL(attention, scaled_dot_product_attention_backward, call.q.device(), call, out,
              logsumexp, dense_last(gout), gq, gk, gv);
}

Tensor empty_heads_like(const Tensor& x) {
  return empty_heads(x.sizes(), x);
}

}  // namespace tarn::raw
