// attention.h - slots for scaled dot product attention, fused: the scores are never stored.
#pragma once

#include "tarn/core/random.h"
#include "tarn/core/tensor.h"

namespace tarn {

/// softmax(scale * q k^T + mask) v per batch and head, with dropout on the probabilities.
struct AttentionCall {
  Tensor q;     ///< [B, H, T, D]; in all three the last dimension is dense, other strides are free
  Tensor k, v;  ///< [B, G, S, D] and [B, G, S, E]; G divides H: query head h uses head h / (H / G)
  /// [B, H, T, S] with any strides (0 where broadcast), or undefined. bool: true attends; else of
  /// the dtype of logsumexp and added to the scaled scores.
  Tensor mask;
  double scale = 1;
  bool causal = false;  ///< query t attends to keys s <= t only
  /// Element ((b H + h) T + t) S + s of the probabilities uses 32-bit draw of this index, as
  /// dropout of a [B, H, T, S] tensor would (core/random_draws.h).
  double dropout = 0;
  PhiloxState state{};
};

struct AttentionKernels {
  /// out [B, H, T, E] (last dimension dense) and logsumexp [B, H, T] of the masked scores (dense,
  /// f32, or f64 for f64). A row without keys: out 0, logsumexp -inf. Nothing is empty but S may
  /// be 0.
  void (*scaled_dot_product_attention)(const AttentionCall& call, const Tensor& out,
                                       const Tensor& logsumexp, Stream stream) = nullptr;
  /// Gradients of q, k and v (last dimension dense); rows without keys contribute 0.
  void (*scaled_dot_product_attention_backward)(const AttentionCall& call, const Tensor& out,
                                                const Tensor& logsumexp, const Tensor& gout,
                                                const Tensor& gq, const Tensor& gk,
                                                const Tensor& gv, Stream stream) = nullptr;
};

}  // namespace tarn
