// gpt.h - GPT-2: a decoder of pre-norm Transformer blocks over tokens.
//
//   nn::models::Gpt gpt(nn::models::gpt_options("gpt2"));
//   gpt.loss(tokens, targets).backward();
//   Tensor text = gpt.generate(prompt, 100, {.temperature = 0.8, .top_k = 200});
//
// Parameter names are nanoGPT's and, up to the order of sizes, Hugging Face's: transformer.wte,
// .wpe, .h.N.{ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj}, .ln_f; lm_head.weight is
// transformer.wte.weight.
// Source: Radford et al. 2019, "Language models are unsupervised multitask learners".
#pragma once

#include <string>
#include <vector>

#include "tarn/nn/activation.h"
#include "tarn/nn/generate.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/norm.h"
#include "tarn/nn/sequential.h"

namespace tarn::nn::models {

struct GptOptions {
  int64_t vocab = 50257;
  int64_t block = 1024;  ///< the longest sequence
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t size = 768;  ///< width of the model
  double dropout = 0;
  bool bias = true;       ///< in linear layers and norms
  bool tanh_gelu = true;  ///< GPT-2's approximation; false: the exact GELU, as in nanoGPT
};
/// Sizes of "gpt2", "gpt2-medium", "gpt2-large" and "gpt2-xl". Throws ValueError that lists them.
GptOptions gpt_options(const std::string& name);

/// Causal self-attention; c_attn makes queries, keys and values side by side.
class GptAttention final : public Module {
 public:
  GptAttention(Module* parent, std::string name, const GptOptions& options);
  Tensor forward(const Tensor& x) override;
  /// For x [B, T, C] that follows what `cache` holds for this layer.
  Tensor forward(const Tensor& x, KeyValueCache& cache, int64_t layer);

  Linear c_attn, c_proj;

 private:
  Tensor attend(const Tensor& x, KeyValueCache& cache, int64_t layer);
  int64_t heads_;
  double dropout_;
  Dropout resid_dropout_;
};

/// c_proj(gelu(c_fc(x))), four times as wide inside.
class GptMlp final : public Module {
 public:
  GptMlp(Module* parent, std::string name, const GptOptions& options);
  Tensor forward(const Tensor& x) override;

  Linear c_fc, c_proj;

 private:
  bool tanh_gelu_;
  Dropout dropout_;
};

/// x + attn(ln_1(x)), then x + mlp(ln_2(x)).
class GptBlock final : public Module {
 public:
  using Options = GptOptions;
  explicit GptBlock(const Options& options);
  Tensor forward(const Tensor& x) override;
  Tensor forward(const Tensor& x, KeyValueCache& cache, int64_t layer);

  LayerNorm ln_1;
  GptAttention attn;
  LayerNorm ln_2;
  GptMlp mlp;
};

class Gpt final : public Module {
 public:
  using Options = GptOptions;
  /// Initialised as GPT-2: N(0, 0.02), biases 0, residual projections N(0, 0.02 / sqrt(2 layers)).
  /// Throws ValueError on sizes that do not go together.
  explicit Gpt(const Options& options);

  /// tokens [B, T] i64, T <= block -> logits [B, T, vocab].
  Tensor forward(const Tensor& tokens) override;
  /// The same up to ln_f: [B, T, size].
  Tensor features(const Tensor& tokens);
  /// Mean cross entropy of the logits against targets [B, T]; targets of -1 do not count.
  Tensor loss(const Tensor& tokens, const Tensor& targets);

  /// Keeps only the inputs of the blocks for backward, which computes the rest again
  /// (tarn::checkpoint). The model must live until backward is done.
  void set_checkpoint(bool on) { checkpoints_ = on; }

  /// A cache of this model's size.
  KeyValueCache make_cache() const { return KeyValueCache(options_.layers, options_.block); }
  /// Logits [B, vocab] after the last of tokens [B, T], which follow what the cache holds.
  /// Unrecorded. Hooks of the blocks and of what is in them run, those of the model itself do not.
  Tensor next_logits(const Tensor& tokens, KeyValueCache& cache);
  /// tokens [B, T] and `count` more, each drawn as options say: [B, T + count]. In evaluation mode,
  /// unrecorded. Beyond the block the text so far is cut to its last half block and read again.
  Tensor generate(const Tensor& tokens, int64_t count, const SampleOptions& options = {});

  const Options& options() const { return options_; }
  /// Parameters without position embeddings, as nanoGPT counts them.
  int64_t num_parameters_without_positions() const;
  std::string details() const override;

  class Transformer final : public Module {
   public:
    Transformer(Module* parent, std::string name, const Options& options);
    Embedding wte, wpe;
    Dropout drop;
    ModuleList<GptBlock> h;
    LayerNorm ln_f;
  };
  class Head final : public Module {
   public:
    Head(Module* parent, std::string name, const Parameter& tied);
    Tensor forward(const Tensor& x) override;
    Parameter weight;
  };
  Transformer transformer;
  Head lm_head;

 private:
  Tensor embed(const Tensor& tokens, int64_t first);
  Options options_;
  bool checkpoints_ = false;
};

/// A state_dict for Gpt from Hugging Face's GPT-2 (keys with or without "transformer."): its linear
/// weights are stored [in, out] and turned; mask buffers are left out; lm_head.weight is added.
TensorDict gpt_state_from_huggingface(const TensorDict& dict);
/// The way back: what a file of Hugging Face's GPT-2 holds, from the state_dict of a Gpt with
/// biases.
TensorDict gpt_state_to_huggingface(const TensorDict& dict);

}  // namespace tarn::nn::models
