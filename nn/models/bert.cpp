// bert.cpp - BERT: blocks, embeddings, sentence vectors, and published weights.
#include "tarn/nn/models/bert.h"

#include "tarn/autograd/functions.h"
#include "tarn/nn/init.h"

namespace tarn::nn::models {
namespace {

const BertOptions& checked(const BertOptions& o) {
  TARN_CHECK_AS(ValueError,
                o.vocab > 0 && o.positions > 0 && o.types > 0 && o.layers > 0 && o.hidden > 0,
                "Bert: vocab, positions, types, layers and hidden must be positive");
  TARN_CHECK_AS(ValueError, o.heads > 0 && o.size > 0 && o.size % o.heads == 0,
                "Bert: size must be a positive multiple of heads; got size=", o.size,
                ", heads=", o.heads);
  return o;
}

LayerNormOptions norm_options(const BertOptions& o) {
  return {.shape = {o.size}, .eps = o.eps};
}

}  // namespace

BertOptions bert_options(const std::string& name) {
  if (name == "bert-base-uncased") return {};
  if (name == "all-MiniLM-L6-v2") {
    return {.layers = 6, .heads = 12, .size = 384, .hidden = 1536};
  }
  tarn::detail::fail<ValueError>("bert_options: '", name,
                                 "' is none of bert-base-uncased, all-MiniLM-L6-v2");
}

BertOutput::BertOutput(Module* parent, std::string name, int64_t in, const BertOptions& o)
    : Module(parent, std::move(name)),
      dense(this, "dense", {.in = in, .out = o.size}),
      norm(this, "LayerNorm", norm_options(o)),
      dropout_(this, "dropout", {.p = o.dropout}) {}

Tensor BertOutput::add(const Tensor& x, const Tensor& residual) {
  return hooked(x, [&](const Tensor& in) { return norm.add(dropout_(dense(in)), residual).y; });
}

BertAttention::Self::Self(Module* parent, std::string name, const BertOptions& o)
    : Module(parent, std::move(name)),
      query(this, "query", {.in = o.size, .out = o.size}),
      key(this, "key", {.in = o.size, .out = o.size}),
      value(this, "value", {.in = o.size, .out = o.size}) {}

BertAttention::BertAttention(Module* parent, std::string name, const BertOptions& o)
    : Module(parent, std::move(name)),
      self(this, "self", o),
      output(this, "output", o.size, o),
      heads_(o.heads),
      dropout_(o.dropout) {}

Tensor BertAttention::run(const Tensor& x, const Tensor& mask) {
  const auto heads = [&](const Tensor& y) {
    return y.reshape({y.size(0), y.size(1), heads_, y.size(2) / heads_}).transpose(1, 2);
  };
  return hooked(x, [&](const Tensor& in) {
    const Tensor y = scaled_dot_product_attention(
        heads(self.query(in)), heads(self.key(in)), heads(self.value(in)),
        {.mask = joined_mask({.key_mask = mask}), .dropout = training() ? dropout_ : 0});
    return output.add(y.transpose(1, 2).reshape(in.sizes()), in);
  });
}

BertLayer::Intermediate::Intermediate(Module* parent, std::string name, const BertOptions& o)
    : Module(parent, std::move(name)), dense(this, "dense", {.in = o.size, .out = o.hidden}) {}

BertLayer::BertLayer(const Options& o)
    : attention(this, "attention", o),
      intermediate(this, "intermediate", o),
      output(this, "output", o.hidden, o) {}

Tensor BertLayer::run(const Tensor& x, const Tensor& mask) {
  return hooked(x, [&](const Tensor& in) {
    const Tensor y = attention.run(in, mask);
    return output.add(intermediate.dense.gelu(y), y);
  });
}

Bert::Embeddings::Embeddings(Module* parent, std::string name, const BertOptions& o)
    : Module(parent, std::move(name)),
      word_embeddings(this, "word_embeddings", {.count = checked(o).vocab, .size = o.size}),
      position_embeddings(this, "position_embeddings", {.count = o.positions, .size = o.size}),
      token_type_embeddings(this, "token_type_embeddings", {.count = o.types, .size = o.size}),
      norm(this, "LayerNorm", norm_options(o)),
      dropout(this, "dropout", {.p = o.dropout}) {}

Bert::Encoder::Encoder(Module* parent, std::string name, const BertOptions& o)
    : Module(parent, std::move(name)), layer(this, "layer") {
  for (int64_t i = 0; i < o.layers; ++i) layer.add<BertLayer>(o);
}

Bert::Pooler::Pooler(Module* parent, std::string name, const BertOptions& o)
    : Module(parent, std::move(name)), dense(this, "dense", {.in = o.size, .out = o.size}) {}

Bert::Bert(const Options& o)
    : embeddings(this, "embeddings", o), encoder(this, "encoder", o), options_(o) {
  if (o.pooler) pooler.emplace(this, "pooler", o);
  for (auto& [name, p] : named_parameters()) {
    if (p.dim() == 2) init::normal_(p, 0, 0.02);
    if (p.dim() == 1 && name.ends_with("bias")) init::zeros_(p);
  }
}

Tensor Bert::run(const Tensor& tokens, const Tensor& mask, const Tensor& types) {
  return hooked(tokens, [&](const Tensor& in) { return hidden_states(in, mask, types); });
}

Tensor Bert::hidden_states(const Tensor& tokens, const Tensor& mask, const Tensor& types) {
  TARN_CHECK_AS(ShapeError, tokens.dim() == 2, "Bert: tokens must be [B, T]; got ",
                tokens.describe());
  const int64_t time = tokens.size(1);
  TARN_CHECK_AS(ShapeError, time <= options_.positions, "Bert: the model reads at most ",
                options_.positions, " tokens; got ", time);
  TARN_CHECK_AS(ShapeError, !mask.defined() || mask.sizes() == tokens.sizes(),
                "Bert: mask must have the sizes of tokens; got tokens=", tokens.describe(),
                ", mask=", mask.describe());
  const Tensor kinds = types.defined() ? embeddings.token_type_embeddings(types)
                                       : embeddings.token_type_embeddings.weight.narrow(0, 0, 1);
  Tensor x = embeddings.word_embeddings(tokens) + kinds +
             embeddings.position_embeddings.weight.narrow(0, 0, time);
  x = embeddings.dropout(embeddings.norm(x));
  const Tensor allowed = mask.defined() ? mask.to(DType::kBool) : mask;
  for (BertLayer* layer : encoder.layer) x = layer->run(x, allowed);
  return x;
}

Tensor Bert::pooled(const Tensor& hidden) {
  const CallScope scope(*this);
  TARN_CHECK_AS(ValueError, pooler.has_value(), "Bert: this model has no pooler");
  return tanh(pooler->dense(hidden.select(1, 0)));
}

Tensor Bert::sentence_vectors(const Tensor& tokens, const Tensor& mask,
                              const SentenceOptions& options) {
  const CallScope scope(*this);
  const Tensor hidden = run(tokens, mask);
  Tensor vectors;
  if (options.pooling == SentenceOptions::Pooling::kFirst) {
    vectors = hidden.select(1, 0);
  } else if (!mask.defined()) {
    vectors = hidden.mean({1});
  } else {
    const Tensor counts = mask.to(hidden.dtype()).unsqueeze(2);
    vectors = (hidden * counts).sum({1}) / clamp_min(counts.sum({1}), 1e-9);
  }
  if (!options.normalize) return vectors;
  return vectors / clamp_min(tarn::norm(vectors, 2, {1}, true), 1e-12);
}

TensorDict bert_state_from_huggingface(const TensorDict& dict) {
  TensorDict out;
  const auto replace_end = [](std::string& name, const std::string& end, const char* by) {
    if (name.ends_with(end)) name.replace(name.size() - end.size(), end.size(), by);
  };
  for (const auto& [key, tensor] : dict) {
    std::string name = key.starts_with("bert.") ? key.substr(5) : key;
    const bool other = name.starts_with("cls.") || name.starts_with("classifier.");
    if (other || name.ends_with("position_ids")) continue;
    replace_end(name, "LayerNorm.gamma", "LayerNorm.weight");
    replace_end(name, "LayerNorm.beta", "LayerNorm.bias");
    out.add(name, tensor);
  }
  return out;
}

}  // namespace tarn::nn::models
