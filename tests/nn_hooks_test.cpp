// nn_hooks_test.cpp - hooks run whichever of a module's functions is called, and once.
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/nn/models/bert.h"
#include "tarn/nn/models/gpt.h"
#include "tarn/nn/models/resnet.h"
#include "tarn/nn/models/translator.h"
#include "tarn/nn/transformer.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::nn {
namespace {

/// Counts the calls of every module below a root, by name.
class Calls {
 public:
  explicit Calls(Module& root) {
    for (auto& [name, module] : root.named_modules()) {
      module->register_forward_hook([this, name](Module&, const Tensor&, const Tensor&) {
        ++counts_[name];
        return Tensor();
      });
    }
  }
  /// Of one module, since the last time.
  int of(const std::string& name) { return std::exchange(counts_[name], 0); }

 private:
  std::map<std::string, int> counts_;
};

Tensor text(const Shape& sizes, int64_t vocab) {
  return randint(0, vocab, sizes);
}

TEST(HooksTest, all_layers_of_a_resnet_are_seen) {
  models::ResNet net({.depth = 18, .classes = 10, .cifar_stem = true});
  Calls calls(net);
  int leaves = 0;
  for (const bool training : {true, false}) {
    net.train(training);
    net(randn({2, 3, 16, 16}));
    for (auto& [name, module] : net.named_modules()) {
      if (!module->children().empty()) continue;
      ++leaves;
      EXPECT_EQ(calls.of(name), 1) << name;
    }
  }
  EXPECT_EQ(leaves, 2 * 41);  // conv1, bn1, fc, 8 blocks of 4, 3 projections of 2
}

TEST(HooksTest, a_changed_block_changes_generation_as_it_changes_forward) {
  manual_seed(2);
  models::Gpt gpt({.vocab = 11, .block = 8, .layers = 2, .heads = 2, .size = 8});
  gpt.eval();
  const NoGradGuard no_grad;
  const Tensor tokens = text({2, 5}, 11);
  const auto forward = [&](int64_t time) {
    return gpt(tokens.narrow(1, 0, time)).select(1, time - 1);
  };
  const auto expect_the_same = [&] {
    KeyValueCache cache = gpt.make_cache();  // four tokens, then one more
    EXPECT_TRUE(allclose(gpt.next_logits(tokens.narrow(1, 0, 4), cache), forward(4), 1e-4, 1e-5));
    EXPECT_TRUE(allclose(gpt.next_logits(tokens.narrow(1, 4, 1), cache), forward(5), 1e-4, 1e-5));
    const Tensor next = gpt.generate(tokens, 1, {.temperature = 0}).select(1, 5);
    EXPECT_TRUE(equal(next, argmax(forward(5), 1)));
  };
  const Tensor plain = forward(5);
  expect_the_same();
  gpt.transformer.h[0].register_forward_hook(
      [](Module&, const Tensor&, const Tensor& y) { return flip(y, {2}) * 3; });
  gpt.transformer.h[1].attn.register_forward_pre_hook(
      [](Module&, const Tensor& x) { return x * 0.5; });
  EXPECT_FALSE(allclose(forward(5), plain, 1e-3, 1e-3));
  expect_the_same();
}

TEST(HooksTest, functions_of_several_inputs_run_them_once) {
  const TransformerLayerOptions o{.size = 8, .heads = 2, .hidden = 16, .dropout = 0};
  const Tensor x = randn({2, 3, 8}), memory = randn({2, 4, 8});
  TransformerEncoder encoder(nullptr, "", 1, o);
  Calls encoded(encoder);
  for (const bool by_name : {false, true}) {
    by_name ? encoder.run(x, {.causal = true}) : encoder(x);
    for (const char* name : {"", "layers.0", "layers.0.self_attn", "layers.0.linear1", "norm"}) {
      EXPECT_EQ(encoded.of(name), 1) << name;
    }
  }
  TransformerDecoder decoder(nullptr, "", 1, o);
  Calls decoded(decoder);
  decoder.run(x, memory, {.causal = true}, {});
  for (const char* name : {"", "layers.0", "layers.0.self_attn", "layers.0.multihead_attn"}) {
    EXPECT_EQ(decoded.of(name), 1) << name;
  }
  MultiheadAttention attention({.size = 8, .heads = 2});
  Calls attended(attention);
  attention(x);
  EXPECT_EQ(attended.of(""), 1);
  attention.attend(x, x, x, {});
  EXPECT_EQ(attended.of(""), 1);
  attention.attend(x, memory, memory, {});
  EXPECT_EQ(attended.of(""), 1);
}

TEST(HooksTest, those_of_bert_run_with_a_mask_too) {
  models::Bert bert({.vocab = 9, .positions = 4, .layers = 1, .heads = 2, .size = 8, .hidden = 8});
  Calls calls(bert);
  bert.run(text({2, 4}, 9), ones({2, 4}).to(DType::kBool));
  const std::string layer = "encoder.layer.0";
  for (const std::string& name : {std::string(), layer, layer + ".attention", layer + ".output",
                                  layer + ".attention.output", layer + ".intermediate.dense"}) {
    EXPECT_EQ(calls.of(name), 1) << name;
  }
}

TEST(HooksTest, those_of_a_translator_run_where_it_decodes) {
  models::Translator model({.source_vocab = 9,
                            .target_vocab = 7,
                            .positions = 4,
                            .layers = 1,
                            .layer = {.size = 8, .heads = 2, .hidden = 8, .dropout = 0}});
  Calls calls(model);
  const Tensor memory = model.encode(text({2, 4}, 9));
  EXPECT_EQ(calls.of(""), 0) << "half of what the model does";
  const Tensor target = text({2, 3}, 7);
  const Tensor plain = model.decode(target, memory);
  for (const char* name : {"", "decoder", "decoder.layers.0", "target_embedding", "head"}) {
    EXPECT_EQ(calls.of(name), 1) << name;
  }
  model.register_forward_hook([](Module&, const Tensor&, const Tensor& y) { return y * 2; });
  EXPECT_TRUE(equal(model.decode(target, memory), plain * 2));
}

TEST(HooksTest, a_pre_hook_of_attend_changes_what_is_attended_from) {
  MultiheadAttention attention({.size = 8, .heads = 2});
  const Tensor x = randn({1, 3, 8}), memory = randn({1, 4, 8});
  const Tensor self = attention.attend(x * 2, {.causal = true});
  const Tensor across = attention.attend(x * 2, memory, memory, {});
  attention.register_forward_pre_hook([](Module&, const Tensor& in) { return in * 2; });
  EXPECT_TRUE(allclose(attention.attend(x, {.causal = true}), self, 1e-5, 1e-6));
  EXPECT_TRUE(allclose(attention.attend(x, memory, memory, {}), across, 1e-5, 1e-6));
}

/// Functions in terms of each other.
class Blend : public Module {
 public:
  using Module::Module;
  Tensor forward(const Tensor& x) override { return blend(x, x); }
  Tensor blend(const Tensor& x, const Tensor& other) {
    return hooked(x, [&](const Tensor& in) {
      TARN_CHECK_AS(ValueError, in.dim() == 1, "Blend: x must be a vector");
      return shifted(in, 1) + other;
    });
  }
  Tensor shifted(const Tensor& x, double by) {
    return hooked(x, [&](const Tensor& in) { return in + by; });
  }
};

TEST(HooksTest, own_functions_run_them_once_even_where_one_calls_another) {
  Blend blend;
  Calls calls(blend);
  blend.register_forward_hook([](Module&, const Tensor&, const Tensor& y) { return y * 10; });
  const Tensor x = ones({2});
  EXPECT_EQ(blend.blend(x, x * 5).to_vector<int>(), (std::vector<int>{70, 70}));  // (1 + 1 + 5) 10
  EXPECT_EQ(calls.of(""), 1);
  EXPECT_EQ(blend(x).to_vector<int>(), (std::vector<int>{30, 30}));
  EXPECT_EQ(calls.of(""), 1);
  EXPECT_EQ(blend.shifted(x, 2).to_vector<int>(), (std::vector<int>{30, 30}));
  EXPECT_EQ(calls.of(""), 1);
  EXPECT_MESSAGE(ValueError, blend.blend(ones({1, 1}), x), "x must be a vector");
  EXPECT_EQ(calls.of(""), 0);
  blend.shifted(x, 2);  // the failed call has left no trace
  EXPECT_EQ(calls.of(""), 1);
}

}  // namespace
}  // namespace tarn::nn
