// attention.h - multi-head attention, rotary and sinusoidal positions.
//
// Tensors are [B, T, size] (PyTorch's batch_first = true). Masks say where to attend: true attends,
// as in scaled_dot_product_attention (and contrary to torch.nn.MultiheadAttention).
#pragma once

#include "tarn/nn/linear.h"

namespace tarn::nn {

/// Which keys a query may attend to; all that is given must allow it.
struct AttentionMask {
  Tensor mask{};        ///< broadcasts to [B, H, T, S]; bool, or floating and added to the scores
  Tensor key_mask{};    ///< [B, S] bool: false for padding
  bool causal = false;  ///< query t attends to keys 0..t
};

struct MultiheadAttentionOptions {
  int64_t size = 0;
  int64_t heads = 1;
  double dropout = 0;  ///< of the attention weights, in training
  bool bias = true;
};

/// out_proj(concat over heads of softmax(q_h k_h^T / sqrt(D)) v_h), D = size / heads, with q, k, v
/// projected by in_proj. Names and initialisation are PyTorch's: in_proj_weight [3 size, size]
/// (Xavier), in_proj_bias, out_proj.weight, out_proj.bias.
/// Source: Vaswani et al. 2017, arXiv:1706.03762.
class MultiheadAttention final : public Module {
 public:
  using Options = MultiheadAttentionOptions;
  explicit MultiheadAttention(const Options& options) : MultiheadAttention(nullptr, "", options) {}
  /// Throws ValueError unless heads divides size.
  MultiheadAttention(Module* parent, std::string name, const Options& options);

  /// Self-attention without a mask.
  Tensor forward(const Tensor& x) override { return attend(x, {}); }
  Tensor attend(const Tensor& x, const AttentionMask& mask);
  /// query [B, T, size] against key and value [B, S, size]. Hooks are told of query.
  Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value,
                const AttentionMask& mask);
  std::string details() const override;

  Parameter in_proj_weight, in_proj_bias;
  Linear out_proj;

 private:
  Tensor attend_across(const Tensor& query, const Tensor& key, const Tensor& value,
                       const AttentionMask& mask);
  /// Rows [first, first + count) * size of in_proj applied to x.
  Tensor project(const Tensor& x, int64_t first, int64_t count) const;
  Options options_;
};

/// The mask as scaled_dot_product_attention takes it: key_mask [B, S] joined to mask.
Tensor joined_mask(const AttentionMask& mask);

/// Fixed positions [T, size]: sin(t / 10000^(2i / size)) at 2i and cos at 2i + 1.
Tensor sinusoidal_positions(int64_t time, int64_t size);

/// Rotary position embedding: turns the pairs (x_i, x_{i + D/2}) of each query and key by
/// t * base^(-2i / D), so that scores depend on distances. x [B, H, T, D], D even; `first` is the
/// place of x's first element of time. Source: Su et al. 2021, arXiv:2104.09864.
Tensor rotary_positions(const Tensor& x, int64_t first = 0, double base = 10000);

}  // namespace tarn::nn
