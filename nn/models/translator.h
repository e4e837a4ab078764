// translator.h - the encoder-decoder Transformer: from one sequence of tokens to another.
//
// Source: Vaswani et al. 2017, arXiv:1706.03762.
#pragma once

#include "tarn/nn/generate.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/transformer.h"

namespace tarn::nn::models {

struct TranslatorOptions {
  int64_t source_vocab = 0, target_vocab = 0;
  int64_t positions = 512;  ///< the longest sequence, on both sides
  int64_t layers = 6;       ///< of the encoder and of the decoder
  TransformerLayerOptions layer{};
};

/// Embeddings (scaled by sqrt(size)) with fixed sinusoidal positions, torch.nn.Transformer's stacks
/// ("encoder", "decoder"), and a linear layer to the target's vocabulary ("head").
class Translator final : public Module {
 public:
  using Options = TranslatorOptions;
  /// Throws ValueError unless the vocabularies are positive.
  explicit Translator(const Options& options);

  /// source [B, S] i64 -> memory [B, S, size]. source_mask [B, S] bool: false for padding.
  Tensor encode(const Tensor& source, const Tensor& source_mask = {});
  /// Logits [B, T, target_vocab] for the token after each of target [B, T].
  Tensor decode(const Tensor& target, const Tensor& memory, const Tensor& source_mask = {});
  /// begin, then the most likely tokens until all sequences held `end` or `count` are made:
  /// [B, <= count + 1]. In evaluation mode, unrecorded.
  Tensor translate(const Tensor& source, int64_t begin, int64_t end, int64_t count,
                   const Tensor& source_mask = {});

  Embedding source_embedding, target_embedding;
  Buffer positions;
  Dropout dropout;
  TransformerEncoder encoder;
  TransformerDecoder decoder;
  Linear head;

 private:
  Tensor embed(Embedding& embedding, const Tensor& tokens);
  Options options_;
};

}  // namespace tarn::nn::models
