// raw_attention.h - tarn::raw: scaled dot product attention, unrecorded.
#pragma once

#include "tarn/core/kernels/attention.h"
#include "tarn/core/tensor.h"

namespace tarn::raw {

/// Throws unless q [B, H, T, D], k [B, G, S, D] and v [B, G, S, E] are floating, of one dtype and
/// device, G divides H (equals it without `gqa`), and mask (bool or floating, or undefined)
/// broadcasts to [B, H, T, S].
void check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& mask, bool gqa);
/// The call a kernel takes, from checked operands: dense last dimensions, the mask expanded.
AttentionCall attention_call(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                             double scale, bool causal, double dropout, PhiloxState state);

struct AttentionResult {
  Tensor out;        ///< [B, H, T, E], heads and time in q's order in memory
  Tensor logsumexp;  ///< [B, H, T], f32 (f64 for f64)
};
AttentionResult scaled_dot_product_attention(const AttentionCall& call);

/// Into gq, gk, gv of the sizes of q, k, v; last dimensions dense.
void scaled_dot_product_attention_backward(const AttentionCall& call, const Tensor& out,
                                           const Tensor& logsumexp, const Tensor& gout,
                                           const Tensor& gq, const Tensor& gk, const Tensor& gv);
/// Uninitialised, of x's sizes and dtype, with heads and time in x's order in memory.
Tensor empty_heads_like(const Tensor& x);

}  // namespace tarn::raw
