// nn_vit_translator_test.cpp - the Vision Transformer and the encoder-decoder model.
#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/nn/models/translator.h"
#include "tarn/nn/models/vit.h"
#include "tarn/optim/adam.h"

namespace tarn::nn::models {
namespace {

const VitOptions kVit{
    .image = 8, .patch = 4, .classes = 5, .layers = 2, .heads = 2, .size = 8, .hidden = 12};

TranslatorOptions small() {
  return {.source_vocab = 11,
          .target_vocab = 7,
          .positions = 16,
          .layers = 1,
          .layer = {.size = 16, .heads = 2, .hidden = 32, .dropout = 0}};
}

double worst(const Tensor& a, const Tensor& b) {
  return amax(abs(sub(a, b))).item();
}

TEST(Vit, has_the_names_and_sizes_of_torchvision) {
  Vit vit(kVit);
  const TensorDict state = vit.state_dict();
  EXPECT_EQ(state.at("conv_proj.weight").sizes(), (Shape{8, 3, 4, 4}));
  EXPECT_EQ(state.at("class_token").sizes(), (Shape{1, 1, 8}));
  EXPECT_EQ(state.at("encoder.pos_embedding").sizes(), (Shape{1, 5, 8}));
  for (const char* name :
       {"encoder.layers.encoder_layer_1.ln_1.weight",
        "encoder.layers.encoder_layer_0.self_attention.in_proj_weight",
        "encoder.layers.encoder_layer_0.self_attention.out_proj.bias",
        "encoder.layers.encoder_layer_1.mlp.0.weight", "encoder.layers.encoder_layer_1.mlp.3.bias",
        "encoder.ln.bias", "heads.head.weight"}) {
    EXPECT_TRUE(state.contains(name)) << name;
  }
  EXPECT_EQ(state.size(), 4 + 2 * 12 + 4);  // around the layers 4 + ln 2 + head 2, per layer 12
}

TEST(Vit, tells_pictures_apart_after_a_few_steps) {
  manual_seed(1);
  Vit vit(kVit);
  const Tensor x = randn({5, 3, 8, 8}), y = arange(5);
  optim::AdamW optimizer(vit.parameters(), {.lr = 1e-2});
  double loss = 0;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    const Tensor value = cross_entropy(vit(x), y);
    value.backward();
    optimizer.step();
    loss = value.item();
  }
  EXPECT_LT(loss, 0.2);  // log 5 = 1.6 at the start
}

TEST(Vit, errors_speak_of_pictures) {
  Vit vit(kVit);
  EXPECT_THROWS_WITH(vit(zeros({1, 3, 8, 4})), Error,
                     "Vit: x must be [N, 3, 8, 8]; got [1, 3, 8, 4]");
  EXPECT_THROWS_WITH(Vit({.image = 10, .patch = 4}), Error, "image must be a positive multiple");
  EXPECT_THROWS_WITH(Vit({.classes = 0}), Error, "must be positive");
}

TEST(Translator, later_tokens_do_not_reach_earlier_ones) {
  manual_seed(2);
  Translator model(small());
  const Tensor source = arange(6).view({1, 6});
  const Tensor memory = model.encode(source);
  const Tensor target = tensor({1, 2, 3, 4}, {1, 4}).to(DType::kI64);
  const Tensor all = model.decode(target, memory);
  const Tensor part = model.decode(target.narrow(1, 0, 2), memory);
  EXPECT_EQ(all.sizes(), (Shape{1, 4, 7}));
  EXPECT_LT(worst(all.narrow(1, 0, 2), part), 1e-5);
}

TEST(Translator, padding_of_the_source_changes_nothing) {
  manual_seed(3);
  Translator model(small());
  const Tensor source = tensor({1, 2, 3, 0, 0}, {1, 5}).to(DType::kI64);
  const Tensor real = tensor({1, 1, 1, 0, 0}, {1, 5}).to(DType::kBool);
  const Tensor target = tensor({1, 2}, {1, 2}).to(DType::kI64);
  const Tensor padded = model.decode(target, model.encode(source, real), real);
  const Tensor plain = model.decode(target, model.encode(source.narrow(1, 0, 3)));
  EXPECT_LT(worst(padded, plain), 1e-5);
}

TEST(Translator, learns_to_repeat_a_token) {
  manual_seed(4);
  Translator model(small());
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  // Source (a, a) becomes begin = 0, a, end = 1; a in 2..6.
  const Tensor source = tensor({2, 2, 3, 3, 4, 4, 5, 5, 6, 6}, {5, 2}).to(DType::kI64);
  const Tensor in = tensor({0, 2, 0, 3, 0, 4, 0, 5, 0, 6}, {5, 2}).to(DType::kI64);
  const Tensor out = tensor({2, 1, 3, 1, 4, 1, 5, 1, 6, 1}, {5, 2}).to(DType::kI64);
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const Tensor logits = model.decode(in, model.encode(source));
    cross_entropy(logits.view({10, 7}), out.view({10})).backward();
    optimizer.step();
  }
  EXPECT_THROWS_WITH(model.translate(source, 0, 1, -1), ValueError,
                     "Translator: translate needs a count of at least 0; got -1");
  const Tensor text = model.translate(source, 0, 1, 5);
  EXPECT_EQ(text.sizes(), (Shape{5, 3}));
  EXPECT_TRUE(equal(text.narrow(1, 1, 2), out));
  // A begin token that is the end token as well does not end the text.
  const int64_t next = text.select(0, 0).select(0, 1).item<int64_t>();
  EXPECT_EQ(model.translate(source.narrow(0, 0, 1), 0, 0, 1).size(1), 2);
  EXPECT_GT(model.translate(source.narrow(0, 0, 1), 0, 0, 3).size(1), next == 0 ? 1 : 2);
}

TEST(Translator, errors_speak_of_tokens) {
  Translator model(small());
  EXPECT_THROWS_WITH(model.encode(zeros({1, 17}, {.dtype = DType::kI64})), Error,
                     "Translator: tokens must be [B, T] with T <= 16; got [1, 17] i64 cpu");
  EXPECT_THROWS_WITH(Translator({.source_vocab = 0, .target_vocab = 3}), Error, "must be positive");
}

}  // namespace
}  // namespace tarn::nn::models
