// translator.cpp - the encoder-decoder Transformer.
#include "tarn/nn/models/translator.h"

#include <cmath>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/nn/init.h"

namespace tarn::nn::models {
namespace {

const TranslatorOptions& checked(const TranslatorOptions& o) {
  TARN_CHECK_AS(ValueError, o.source_vocab > 0 && o.target_vocab > 0 && o.layers > 0,
                "Translator: source_vocab, target_vocab and layers must be positive; got ",
                o.source_vocab, ", ", o.target_vocab, ", ", o.layers);
  return o;
}

}  // namespace

Translator::Translator(const Options& o)
    : source_embedding(this, "source_embedding",
                       {.count = checked(o).source_vocab, .size = o.layer.size}),
      target_embedding(this, "target_embedding", {.count = o.target_vocab, .size = o.layer.size}),
      positions(this, "positions", sinusoidal_positions(o.positions, o.layer.size),
                BufferKind::kNotSaved),
      dropout(this, "dropout", {.p = o.layer.dropout}),
      encoder(this, "encoder", o.layers, o.layer),
      decoder(this, "decoder", o.layers, o.layer),
      head(this, "head", {.in = o.layer.size, .out = o.target_vocab}),
      options_(o) {
  for (auto& [name, p] : named_parameters()) {
    if (p.dim() == 2) init::xavier_uniform_(p);
  }
}

Tensor Translator::embed(Embedding& embedding, const Tensor& tokens) {
  TARN_CHECK_AS(ShapeError, tokens.dim() == 2 && tokens.size(1) <= options_.positions,
                "Translator: tokens must be [B, T] with T <= ", options_.positions, "; got ",
                tokens.describe());
  const double scale = std::sqrt(static_cast<double>(options_.layer.size));
  return dropout(embedding(tokens) * scale + positions.narrow(0, 0, tokens.size(1)));
}

Tensor Translator::encode(const Tensor& source, const Tensor& source_mask) {
  const CallScope scope(*this);
  return encoder.run(embed(source_embedding, source), {.key_mask = source_mask});
}

Tensor Translator::decode(const Tensor& target, const Tensor& memory, const Tensor& source_mask) {
  return hooked(target, [&](const Tensor& in) {
    return head(decoder.run(embed(target_embedding, in), memory, {.causal = true},
                            {.key_mask = source_mask}));
  });
}

Tensor Translator::translate(const Tensor& source, int64_t begin, int64_t end, int64_t count,
                             const Tensor& source_mask) {
  TARN_CHECK_AS(ValueError, count >= 0, "Translator: translate needs a count of at least 0; got ",
                count);
  const CallScope scope(*this);
  const NoGradGuard no_grad;
  const EvalScope evaluation(*this);
  const Tensor memory = encode(source, source_mask);
  Tensor text = full({source.size(0), 1}, begin, {.dtype = DType::kI64, .device = source.device()});
  for (int64_t i = 0; i < count; ++i) {
    const Tensor logits = decode(text, memory, source_mask).select(1, text.size(1) - 1);
    text = cat({text, argmax(logits, 1).unsqueeze(1)}, 1);
    const Tensor made = text.narrow(1, 1, text.size(1) - 1);  // `begin` may be `end`
    if (all(any(eq(made, Scalar(end)), {1})).item<bool>()) break;
  }
  return text;
}

}  // namespace tarn::nn::models
