// ops_attention.cpp - fused attention, its gradient, and the composed form both must agree with.
//
// The composed form (scores and probabilities as tensors) serves where the fused kernels cannot:
// the gradient of the gradient, and masks that are trained.
#include <cmath>
#include <limits>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/random_draws.h"
#include "tarn/core/raw_attention.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_random.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

constexpr const char* kName = "scaled_dot_product_attention";
constexpr double kInf = std::numeric_limits<double>::infinity();

/// The options without tensors: what a backward formula may capture.
struct Plan {
  double scale;
  double dropout;
  PhiloxState state;
  bool causal;
};

Plan make_plan(const Tensor& q, int64_t heads, int64_t queries, int64_t keys,
               const AttentionOptions& options) {
  raw::check_probability(kName, options.dropout);
  Plan p{.scale = 1, .dropout = options.dropout, .state = {}, .causal = options.causal};
  const int64_t d = q.sizes().back();
  p.scale = options.scale.value_or(d > 0 ? 1 / std::sqrt(static_cast<double>(d)) : 1);
  if (options.dropout > 0) {
    Generator& generator = options.generator ? *options.generator : default_generator();
    p.state = generator.take(draws::counters32(q.size(0) * heads * queries * keys));
  }
  return p;
}

AttentionCall call_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                      const Plan& p) {
  return raw::attention_call(q, k, v, mask, p.scale, p.causal, p.dropout, p.state);
}

// ---- the composed form

/// [B, G, S, D] -> [B, H, S, D].
Tensor for_each_head(const Tensor& x, int64_t heads) {
  return x.size(1) == heads ? x : repeat_interleave(x, heads / x.size(1), 1);
}

/// softmax of the masked scores; 0 in rows that are masked throughout.
Tensor probabilities(const Tensor& q, const Tensor& k, const Tensor& mask, const Plan& p) {
  Tensor scores = mul(matmul(q, transpose(k, -2, -1)), p.scale);
  if (mask.defined()) {
    scores = mask.dtype() == DType::kBool ? masked_fill(scores, raw::logical_not(mask), -kInf)
                                          : add(scores, to(mask, scores.dtype()));
  }
  if (p.causal) {
    const Tensor all = ones({q.size(2), k.size(2)}, {.dtype = DType::kF32, .device = q.device()});
    scores = masked_fill(scores, raw::eq(tril(all), Scalar(0)), -kInf);
  }
  const Tensor dead = raw::eq(amax(scores.detach(), {-1}, true), Scalar(-kInf));
  return masked_fill(softmax(masked_fill(scores, dead, 0), -1), dead, 0);
}

/// 1 / (1 - p) where a weight is kept, else 0; undefined without dropout.
Tensor dropout_factors(const Tensor& probabilities, const Plan& p) {
  if (p.dropout == 0) return {};
  const Tensor one = ones(probabilities.sizes(),
                          {.dtype = probabilities.dtype(), .device = probabilities.device()});
  return raw::dropout(one, p.dropout, p.state, MemoryFormat::kContiguous);
}

Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                const Plan& p) {
  const AutocastOffGuard wide_throughout;
  const DType wide = accumulate_dtype(q.dtype());
  const int64_t heads = q.size(1);
  if (k.size(2) == 0)
    return matmul(matmul(q, transpose(for_each_head(k, heads), -2, -1)), for_each_head(v, heads));
  Tensor weights = probabilities(to(q, wide), to(for_each_head(k, heads), wide), mask, p);
  if (const Tensor factors = dropout_factors(weights, p); factors.defined()) {
    weights = mul(weights, factors);
  }
  return to(matmul(weights, to(for_each_head(v, heads), wide)), q.dtype());
}

/// Sums over the query heads that shared a head of k or v.
Tensor per_group(const Tensor& g, const Tensor& like) {
  const int64_t heads = g.size(1), groups = like.size(1);
  Tensor sum_of = g;
  if (heads != groups) {
    sum_of = sum(reshape(g, {g.size(0), groups, heads / groups, g.size(2), g.size(3)}), {2});
  }
  return to(sum_of, like.dtype());
}

struct HeadGrads {
  Tensor q, k, v;
};

HeadGrads composed_backward(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                            const Tensor& mask, const Tensor& g_in, const Plan& p) {
  const DType wide = accumulate_dtype(q_in.dtype());
  const int64_t heads = q_in.size(1);
  const Tensor q = to(q_in, wide), k = to(for_each_head(k_in, heads), wide);
  const Tensor v = to(for_each_head(v_in, heads), wide), g = to(g_in, wide);
  const Tensor weights = probabilities(q, k, mask, p);
  const Tensor factors = dropout_factors(weights, p);
  const Tensor kept = factors.defined() ? mul(weights, factors) : weights;
  Tensor gweights = matmul(g, transpose(v, -2, -1));
  if (factors.defined()) gweights = mul(gweights, factors);
  const Tensor gscores =
      mul(mul(weights, sub(gweights, sum(mul(gweights, weights), {-1}, true))), p.scale);
  return {to(matmul(gscores, k), q_in.dtype()),
          per_group(matmul(transpose(gscores, -2, -1), q), k_in),
          per_group(matmul(transpose(kept, -2, -1), g), v_in)};
}

// ---- the fused form

/// q, k and v are [B, H, T, D] and checked.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                 const Plan& p) {
  if (will_record(mask)) return composed(q, k, v, mask, p);
  const raw::AttentionResult r = raw::scaled_dot_product_attention(call_of(q, k, v, mask, p));
  return record(kName, r.out, {q, k, v}, save(q, k, v, mask, r.out, r.logsumexp),
                [p](const Saved& s, const Tensor& g, Wants) {
                  if (grad_enabled() && s[1].size(2) > 0) {
                    const HeadGrads grads = composed_backward(s[0], s[1], s[2], s[3], g, p);
                    return Grads(grads.q, grads.k, grads.v);
                  }
                  const Tensor gq = raw::empty_heads_like(s[0]), gk = raw::empty_heads_like(s[1]);
                  const Tensor gv = raw::empty_heads_like(s[2]);
                  raw::scaled_dot_product_attention_backward(call_of(s[0], s[1], s[2], s[3], p),
                                                             s[4], s[5], to(g, s[0].dtype()), gq,
                                                             gk, gv);
                  return Grads(gq, gk, gv);
                });
}

/// Queries, keys or values (part 0, 1, 2) of qkv [B, T, 3 * H * D] as a view [B, H, T, D].
Tensor part_of(const Tensor& qkv, int64_t heads, int part) {
  const int64_t width = qkv.sizes()[2] / 3, rows = qkv.strides()[1];
  const Shape sizes{qkv.sizes()[0], heads, qkv.sizes()[1], width / heads};
  return raw::as_strided(qkv, sizes, {qkv.strides()[0], width / heads, rows, 1},
                         qkv.storage_offset() + part * width);
}

/// The same recorded, for the gradient of the gradient.
Tensor recorded_part(const Tensor& qkv, int64_t heads, int part) {
  const int64_t width = qkv.size(2) / 3;
  const Tensor x = narrow(qkv, 2, part * width, width);
  return transpose(reshape(x, {x.size(0), x.size(1), heads, width / heads}), 1, 2);
}

/// [B, H, T, D] -> [B, T, H * D]; no copy where heads lie inside time.
Tensor merged(const Tensor& x) {
  return reshape(transpose(x, 1, 2), {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

Tensor packed_gradient(const Saved& s, const Tensor& g, int64_t heads, const Plan& p) {
  const Tensor qkv = s[0], mask = s[1];
  const Tensor gout = transpose(reshape(g, {g.size(0), g.size(1), heads, g.size(2) / heads}), 1, 2);
  if (grad_enabled() && qkv.size(1) > 0) {
    const HeadGrads grads =
        composed_backward(recorded_part(qkv, heads, 0), recorded_part(qkv, heads, 1),
                          recorded_part(qkv, heads, 2), mask, gout, p);
    return cat({merged(grads.q), merged(grads.k), merged(grads.v)}, 2);
  }
  const Tensor gqkv = empty(qkv.sizes(), {.dtype = qkv.dtype(), .device = qkv.device()});
  const Tensor out =
      raw::permute(raw::view(s[2], {g.size(0), g.size(1), heads, g.size(2) / heads}), {0, 2, 1, 3});
  raw::scaled_dot_product_attention_backward(
      call_of(part_of(qkv, heads, 0), part_of(qkv, heads, 1), part_of(qkv, heads, 2), mask, p), out,
      s[3], to(gout, qkv.dtype()), part_of(gqkv, heads, 0), part_of(gqkv, heads, 1),
      part_of(gqkv, heads, 2));
  return gqkv;
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  if (const auto c = cast(CastPolicy::kLow, q, k, v)) {
    return scaled_dot_product_attention(c[0], c[1], c[2], options);
  }
  const OpScope scope(kName);
  raw::check_defined(kName, "q", q);
  raw::check_defined(kName, "k", k);
  raw::check_defined(kName, "v", v);
  if (q.dim() == k.dim() && q.dim() == v.dim() && (q.dim() == 2 || q.dim() == 3)) {
    return squeeze(
        scaled_dot_product_attention(unsqueeze(q, 0), unsqueeze(k, 0), unsqueeze(v, 0), options),
        0);
  }
  raw::check_attention(kName, q, k, v, options.mask, options.enable_gqa);
  return attention(q, k, v, options.mask, make_plan(q, q.size(1), q.size(2), k.size(2), options));
}

Tensor scaled_dot_product_attention_qkv(const Tensor& qkv, int64_t heads,
                                        const AttentionOptions& options) {
  if (const auto c = cast(CastPolicy::kLow, qkv)) {
    return scaled_dot_product_attention_qkv(c[0], heads, options);
  }
  const OpScope scope(kName);
  raw::check_defined(kName, "qkv", qkv);
  TARN_CHECK_AS(ShapeError, qkv.dim() == 3 && heads > 0 && qkv.size(2) % (3 * heads) == 0,
                "scaled_dot_product_attention_qkv: qkv must be [B, T, 3 * heads * D]; got qkv=",
                qkv.describe(), ", heads=", heads);
  if (will_record(options.mask) || (qkv.strides()[2] != 1 && qkv.size(2) > 1)) {
    return merged(scaled_dot_product_attention(recorded_part(qkv, heads, 0),
                                               recorded_part(qkv, heads, 1),
                                               recorded_part(qkv, heads, 2), options));
  }
  const Tensor q = part_of(qkv, heads, 0), k = part_of(qkv, heads, 1), v = part_of(qkv, heads, 2);
  raw::check_attention(kName, q, k, v, options.mask, false);
  const Plan p = make_plan(q, heads, q.size(2), k.size(2), options);
  const raw::AttentionResult r =
      raw::scaled_dot_product_attention(call_of(q, k, v, options.mask, p));
  const Shape sizes{qkv.size(0), qkv.size(1), qkv.size(2) / 3};
  const Tensor out = raw::reshape(raw::permute(r.out, {0, 2, 1, 3}), sizes);
  return record("scaled_dot_product_attention_qkv", out, {qkv},
                save(qkv, options.mask, out, r.logsumexp),
                [heads, p](const Saved& s, const Tensor& g, Wants) {
                  return Grads(packed_gradient(s, g, heads, p));
                });
}

}  // namespace tarn
