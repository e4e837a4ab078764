// vit.cpp - the Vision Transformer: patches, encoder, head.
#include "tarn/nn/models/vit.h"

#include <cmath>

#include "tarn/autograd/functions.h"
#include "tarn/nn/init.h"

namespace tarn::nn::models {
namespace {

const VitOptions& checked(const VitOptions& o) {
  TARN_CHECK_AS(ValueError, o.patch > 0 && o.image > 0 && o.image % o.patch == 0,
                "Vit: image must be a positive multiple of patch; got image=", o.image,
                ", patch=", o.patch);
  TARN_CHECK_AS(ValueError, o.layers > 0 && o.classes > 0 && o.in_channels > 0 && o.hidden > 0,
                "Vit: layers, classes, in_channels and hidden must be positive");
  return o;
}

LayerNormOptions norm_options(const VitOptions& o) {
  return {.shape = {o.size}, .eps = 1e-6};
}

int64_t patches(const VitOptions& o) {
  return (o.image / o.patch) * (o.image / o.patch);
}

}  // namespace

VitLayer::VitLayer(Module* parent, std::string name, const VitOptions& o)
    : Module(parent, std::move(name)),
      ln_1(this, "ln_1", norm_options(o)),
      self_attention(this, "self_attention",
                     {.size = o.size, .heads = o.heads, .dropout = o.dropout}),
      ln_2(this, "ln_2", norm_options(o)),
      mlp(this, "mlp"),
      dropout_(this, "dropout", {.p = o.dropout}) {
  Linear& wide = mlp.add<Linear>({.in = o.size, .out = o.hidden});
  mlp.add<GELU>();
  mlp.add<Dropout>({.p = o.dropout});
  Linear& narrow = mlp.add<Linear>({.in = o.hidden, .out = o.size});
  mlp.add<Dropout>({.p = o.dropout});
  for (Linear* layer : {&wide, &narrow}) {
    init::xavier_uniform_(layer->weight);
    init::normal_(layer->bias, 0, 1e-6);
  }
}

Tensor VitLayer::forward(const Tensor& x) {
  const AddNormResult y = ln_2.add(x, dropout_(self_attention(ln_1(x))));
  return y.sum + mlp(y.y);
}

Vit::Encoder::Layers::Layers(Module* parent, std::string name, const VitOptions& o)
    : Module(parent, std::move(name)) {
  for (int64_t i = 0; i < o.layers; ++i) {
    const std::string layer = "encoder_layer_" + std::to_string(i);
    items_.push_back(&adopt(layer, std::make_unique<VitLayer>(nullptr, "", o)));
  }
}

Tensor Vit::Encoder::Layers::forward(const Tensor& x) {
  Tensor y = x;
  for (VitLayer* layer : items_) y = (*layer)(y);
  return y;
}

Vit::Encoder::Encoder(Module* parent, std::string name, const VitOptions& o)
    : Module(parent, std::move(name)),
      pos_embedding(this, "pos_embedding", parameter_memory({1, patches(o) + 1, o.size})),
      dropout(this, "dropout", {.p = o.dropout}),
      layers(this, "layers", o),
      ln(this, "ln", norm_options(o)) {
  init::normal_(pos_embedding, 0, 0.02);
}

Tensor Vit::Encoder::forward(const Tensor& x) {
  return ln(layers(dropout(x + pos_embedding)));
}

Vit::Heads::Heads(Module* parent, std::string name, const VitOptions& o)
    : Module(parent, std::move(name)), head(this, "head", {.in = o.size, .out = o.classes}) {
  init::zeros_(head.weight);
  init::zeros_(head.bias);
}

Vit::Vit(const Options& o)
    : conv_proj(
          this, "conv_proj",
          {.in = checked(o).in_channels, .out = o.size, .kernel = o.patch, .stride = o.patch}),
      class_token(this, "class_token", parameter_memory({1, 1, o.size})),
      encoder(this, "encoder", o),
      heads(this, "heads", o),
      options_(o) {
  const auto fan_in = static_cast<double>(o.in_channels * o.patch * o.patch);
  init::trunc_normal_(conv_proj.weight, 0, std::sqrt(1 / fan_in));
  init::zeros_(conv_proj.bias);
  init::zeros_(class_token);
}

Tensor Vit::forward(const Tensor& x) {
  TARN_CHECK_AS(ShapeError,
                x.dim() == 4 && x.size(1) == options_.in_channels && x.size(2) == options_.image &&
                    x.size(3) == options_.image,
                "Vit: x must be [N, ", options_.in_channels, ", ", options_.image, ", ",
                options_.image, "]; got ", x.describe());
  const Tensor pixels = conv_proj(x);  // [N, size, image / patch, image / patch]
  const Tensor tokens = pixels.flatten(2).transpose(1, 2);
  const Tensor first = class_token.expand({x.size(0), 1, options_.size});
  return heads.head(encoder(cat({first, tokens}, 1)).select(1, 0));
}

}  // namespace tarn::nn::models
