// transformer.h - layers and stacks of the Transformer, with PyTorch's parameter names.
//
// Tensors are [B, T, size]; masks as in nn/attention.h.
// Source: Vaswani et al. 2017, arXiv:1706.03762.
#pragma once

#include <optional>

#include "tarn/nn/activation.h"
#include "tarn/nn/attention.h"
#include "tarn/nn/norm.h"
#include "tarn/nn/sequential.h"

namespace tarn::nn {

enum class FeedForward : uint8_t { kRelu, kGelu };

struct TransformerLayerOptions {
  int64_t size = 512;
  int64_t heads = 8;
  int64_t hidden = 2048;  ///< width of the feed-forward part
  double dropout = 0.1;
  FeedForward activation = FeedForward::kRelu;
  bool norm_first = false;  ///< norms before the parts (pre-norm), else after the sums
  double eps = 1e-5;
  bool bias = true;
};

/// x + self_attn(x), then x + linear2(act(linear1(x))), each with its norm.
class TransformerEncoderLayer final : public Module {
 public:
  using Options = TransformerLayerOptions;
  explicit TransformerEncoderLayer(const Options& options)
      : TransformerEncoderLayer(nullptr, "", options) {}
  TransformerEncoderLayer(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override { return run(x, {}); }
  Tensor run(const Tensor& x, const AttentionMask& mask);

  MultiheadAttention self_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2;

 private:
  Tensor feed_forward(const Tensor& x);
  Options options_;
  Dropout dropout_;
};

/// x + self_attn(x), x + multihead_attn(x, memory), x + linear2(act(linear1(x))).
class TransformerDecoderLayer final : public Module {
 public:
  using Options = TransformerLayerOptions;
  explicit TransformerDecoderLayer(const Options& options)
      : TransformerDecoderLayer(nullptr, "", options) {}
  TransformerDecoderLayer(Module* parent, std::string name, const Options& options);
  /// x [B, T, size] over memory [B, S, size].
  Tensor run(const Tensor& x, const Tensor& memory, const AttentionMask& mask,
             const AttentionMask& memory_mask);

  MultiheadAttention self_attn, multihead_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2, norm3;

 private:
  Tensor feed_forward(const Tensor& x);
  Options options_;
  Dropout dropout_;
};

/// `count` encoder layers ("layers.N") and, if wanted, a last norm ("norm").
class TransformerEncoder final : public Module {
 public:
  TransformerEncoder(Module* parent, std::string name, int64_t count,
                     const TransformerLayerOptions& options, bool final_norm = true);
  Tensor forward(const Tensor& x) override { return run(x, {}); }
  Tensor run(const Tensor& x, const AttentionMask& mask);

  ModuleList<TransformerEncoderLayer> layers;
  std::optional<LayerNorm> norm;
};

class TransformerDecoder final : public Module {
 public:
  TransformerDecoder(Module* parent, std::string name, int64_t count,
                     const TransformerLayerOptions& options, bool final_norm = true);
  Tensor run(const Tensor& x, const Tensor& memory, const AttentionMask& mask,
             const AttentionMask& memory_mask);

  ModuleList<TransformerDecoderLayer> layers;
  std::optional<LayerNorm> norm;
};

struct SwiGluOptions {
  int64_t size = 0, hidden = 0;
  bool bias = false;
};
/// w2(silu(w1(x)) * w3(x)): the feed-forward part of LLaMA, with its names. Source: Shazeer 2020,
/// arXiv:2002.05202.
class SwiGLU final : public Module {
 public:
  using Options = SwiGluOptions;
  explicit SwiGLU(const Options& options) : SwiGLU(nullptr, "", options) {}
  SwiGLU(Module* parent, std::string name, const Options& options);
  Tensor forward(const Tensor& x) override;

  Linear w1, w2, w3;
};

}  // namespace tarn::nn
