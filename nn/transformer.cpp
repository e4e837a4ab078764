// transformer.cpp - encoder and decoder layers, their stacks, and SwiGLU.
#include "tarn/nn/transformer.h"

#include "tarn/autograd/functions.h"

namespace tarn::nn {
namespace {

MultiheadAttentionOptions attention_options(const TransformerLayerOptions& o) {
  return {.size = o.size, .heads = o.heads, .dropout = o.dropout, .bias = o.bias};
}
LayerNormOptions norm_options(const TransformerLayerOptions& o) {
  return {.shape = {o.size}, .eps = o.eps, .bias = o.bias};
}

Tensor activated(Linear& layer, const Tensor& x, FeedForward activation) {
  return activation == FeedForward::kGelu ? layer.gelu(x) : relu(layer(x));
}

/// x + dropout(part(x)) with the norm in front of the part, or behind the sum.
template <class Part>
Tensor residual(const Tensor& x, LayerNorm& norm, Dropout& dropout, bool norm_first, Part&& part) {
  return norm_first ? dropout.add(part(norm(x)), x) : norm.add(x, dropout(part(x))).y;
}

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      self_attn(this, "self_attn", attention_options(o)),
      linear1(this, "linear1", {.in = o.size, .out = o.hidden, .bias = o.bias}),
      linear2(this, "linear2", {.in = o.hidden, .out = o.size, .bias = o.bias}),
      norm1(this, "norm1", norm_options(o)),
      norm2(this, "norm2", norm_options(o)),
      options_(o),
      dropout_(this, "dropout", {.p = o.dropout}) {}

Tensor TransformerEncoderLayer::feed_forward(const Tensor& x) {
  return linear2(dropout_(activated(linear1, x, options_.activation)));
}

Tensor TransformerEncoderLayer::run(const Tensor& x, const AttentionMask& mask) {
  return hooked(x, [&](const Tensor& start) {
    const Tensor y = residual(start, norm1, dropout_, options_.norm_first,
                              [&](const Tensor& in) { return self_attn.attend(in, mask); });
    return residual(y, norm2, dropout_, options_.norm_first,
                    [&](const Tensor& in) { return feed_forward(in); });
  });
}

TransformerDecoderLayer::TransformerDecoderLayer(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      self_attn(this, "self_attn", attention_options(o)),
      multihead_attn(this, "multihead_attn", attention_options(o)),
      linear1(this, "linear1", {.in = o.size, .out = o.hidden, .bias = o.bias}),
      linear2(this, "linear2", {.in = o.hidden, .out = o.size, .bias = o.bias}),
      norm1(this, "norm1", norm_options(o)),
      norm2(this, "norm2", norm_options(o)),
      norm3(this, "norm3", norm_options(o)),
      options_(o),
      dropout_(this, "dropout", {.p = o.dropout}) {}

Tensor TransformerDecoderLayer::feed_forward(const Tensor& x) {
  return linear2(dropout_(activated(linear1, x, options_.activation)));
}

Tensor TransformerDecoderLayer::run(const Tensor& x, const Tensor& memory,
                                    const AttentionMask& mask, const AttentionMask& memory_mask) {
  return hooked(x, [&](const Tensor& start) {
    const Tensor y = residual(start, norm1, dropout_, options_.norm_first,
                              [&](const Tensor& in) { return self_attn.attend(in, mask); });
    const Tensor z = residual(y, norm2, dropout_, options_.norm_first, [&](const Tensor& in) {
      return multihead_attn.attend(in, memory, memory, memory_mask);
    });
    return residual(z, norm3, dropout_, options_.norm_first,
                    [&](const Tensor& in) { return feed_forward(in); });
  });
}

TransformerEncoder::TransformerEncoder(Module* parent, std::string name, int64_t count,
                                       const TransformerLayerOptions& o, bool final_norm)
    : Module(parent, std::move(name)), layers(this, "layers") {
  for (int64_t i = 0; i < count; ++i) layers.add<TransformerEncoderLayer>(o);
  if (final_norm) norm.emplace(this, "norm", norm_options(o));
}

Tensor TransformerEncoder::run(const Tensor& x, const AttentionMask& mask) {
  return hooked(x, [&](Tensor y) {
    for (TransformerEncoderLayer* layer : layers) y = layer->run(y, mask);
    return norm ? (*norm)(y) : y;
  });
}

TransformerDecoder::TransformerDecoder(Module* parent, std::string name, int64_t count,
                                       const TransformerLayerOptions& o, bool final_norm)
    : Module(parent, std::move(name)), layers(this, "layers") {
  for (int64_t i = 0; i < count; ++i) layers.add<TransformerDecoderLayer>(o);
  if (final_norm) norm.emplace(this, "norm", norm_options(o));
}

Tensor TransformerDecoder::run(const Tensor& x, const Tensor& memory, const AttentionMask& mask,
                               const AttentionMask& memory_mask) {
  return hooked(x, [&](Tensor y) {
    for (TransformerDecoderLayer* layer : layers) y = layer->run(y, memory, mask, memory_mask);
    return norm ? (*norm)(y) : y;
  });
}

SwiGLU::SwiGLU(Module* parent, std::string name, const Options& o)
    : Module(parent, std::move(name)),
      w1(this, "w1", {.in = o.size, .out = o.hidden, .bias = o.bias}),
      w2(this, "w2", {.in = o.hidden, .out = o.size, .bias = o.bias}),
      w3(this, "w3", {.in = o.size, .out = o.hidden, .bias = o.bias}) {}

Tensor SwiGLU::forward(const Tensor& x) {
  return w2(silu(w1(x)) * w3(x));
}

}  // namespace tarn::nn
