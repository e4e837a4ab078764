// vit.h - the Vision Transformer: an encoder over a picture's patches.
//
// Parameter names are torchvision's: conv_proj, class_token, encoder.pos_embedding,
// encoder.layers.encoder_layer_N.{ln_1, self_attention, ln_2, mlp.0, mlp.3}, encoder.ln,
// heads.head. Source: Dosovitskiy et al. 2020, arXiv:2010.11929.
#pragma once

#include "tarn/nn/activation.h"
#include "tarn/nn/attention.h"
#include "tarn/nn/conv.h"
#include "tarn/nn/norm.h"
#include "tarn/nn/sequential.h"

namespace tarn::nn::models {

struct VitOptions {
  int64_t image = 224;  ///< height and width
  int64_t patch = 16;
  int64_t in_channels = 3;
  int64_t classes = 1000;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t size = 768;
  int64_t hidden = 3072;
  double dropout = 0;
};

/// x + self_attention(ln_1(x)), then x + mlp(ln_2(x)).
class VitLayer final : public Module {
 public:
  using Options = VitOptions;
  VitLayer(Module* parent, std::string name, const VitOptions& options);
  Tensor forward(const Tensor& x) override;

  LayerNorm ln_1;
  MultiheadAttention self_attention;
  LayerNorm ln_2;
  Sequential mlp;

 private:
  Dropout dropout_;
};

class Vit final : public Module {
 public:
  using Options = VitOptions;
  /// Throws ValueError on sizes that do not go together.
  explicit Vit(const Options& options);
  /// x [N, in_channels, image, image] -> [N, classes].
  Tensor forward(const Tensor& x) override;

  class Encoder final : public Module {
   public:
    Encoder(Module* parent, std::string name, const VitOptions& options);
    Tensor forward(const Tensor& x) override;
    Parameter pos_embedding;  // [1, patches + 1, size]
    Dropout dropout;
    class Layers final : public Module {
     public:
      Layers(Module* parent, std::string name, const VitOptions& options);
      Tensor forward(const Tensor& x) override;

     private:
      std::vector<VitLayer*> items_;
    };
    Layers layers;
    LayerNorm ln;
  };
  class Heads final : public Module {
   public:
    Heads(Module* parent, std::string name, const VitOptions& options);
    Linear head;
  };
  Conv2d conv_proj;
  Parameter class_token;  // [1, 1, size]
  Encoder encoder;
  Heads heads;

 private:
  Options options_;
};

}  // namespace tarn::nn::models
