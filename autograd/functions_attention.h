// functions_attention.h - scaled dot product attention, recorded and fused.
//
// Forward and backward walk over tiles of scores that stay in the cache: memory grows linearly with
// the number of queries and keys, never with their product.
#pragma once

#include <optional>

#include "tarn/core/random.h"
#include "tarn/core/tensor.h"

namespace tarn {

struct AttentionOptions {
  /// Broadcasts to [B, H, T, S]. bool: true attends; floating: added to the scaled scores.
  Tensor mask{};
  bool causal = false;             ///< query t attends to keys 0..t only (also with a mask)
  double dropout = 0;              ///< probability with which a weight is zeroed
  std::optional<double> scale{};   ///< of the scores; none: 1 / sqrt(D)
  bool enable_gqa = false;         ///< k and v may have fewer heads, each used by H / G neighbours
  Generator* generator = nullptr;  ///< for dropout; none: default_generator()
};

/// softmax(scale * q k^T + mask) v, as torch.nn.functional.scaled_dot_product_attention.
/// q [B, H, T, D], k [B, H, S, D], v [B, H, S, E] -> [B, H, T, E]; or without B, or without B and
/// H. Accumulates in f32 (f64 for f64). A query that may attend to nothing gets 0, and its
/// gradients are 0. A mask that requires grad is differentiated too (unfused, in memory of T * S).
/// The result keeps q's order of heads and time in memory. Throws ShapeError if the sizes do not go
/// together, DTypeError if the dtypes do not. Source: Dao et al. 2022, arXiv:2205.14135.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

/// The same on one tensor that holds queries, keys and values side by side, as one linear layer
/// gives them: qkv [B, T, 3 * heads * D] -> [B, T, heads * D]. Its gradient is one tensor too,
/// which saves taking qkv apart and putting its gradient together.
Tensor scaled_dot_product_attention_qkv(const Tensor& qkv, int64_t heads,
                                        const AttentionOptions& options = {});

}  // namespace tarn
