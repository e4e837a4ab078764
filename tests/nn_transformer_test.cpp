// nn_transformer_test.cpp - attention layers, GPT and BERT: names, initialisation, generation,
// errors.
#include <cmath>
#include <set>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/nn/models/bert.h"
#include "tarn/nn/models/gpt.h"
#include "tarn/nn/transformer.h"

namespace tarn::nn {
namespace {

using models::Gpt;
using models::GptOptions;

const GptOptions kSmall{.vocab = 19, .block = 12, .layers = 2, .heads = 2, .size = 8};

double worst(const Tensor& a, const Tensor& b) {
  return amax(abs(sub(a, b))).item();
}

Tensor tokens(const Shape& sizes, int64_t vocab, uint64_t seed = 1) {
  Generator generator(seed);
  return randint(0, vocab, sizes, {.dtype = DType::kI64}, &generator);
}

TEST(MultiheadAttention, has_the_names_and_the_start_of_pytorch) {
  MultiheadAttention layer({.size = 8, .heads = 2});
  std::vector<std::string> names;
  for (const auto& [name, p] : layer.named_parameters()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"in_proj_weight", "in_proj_bias", "out_proj.weight",
                                             "out_proj.bias"}));
  EXPECT_LE(amax(abs(layer.in_proj_weight)).item(), std::sqrt(6.0 / (24 + 8)));
  EXPECT_EQ(amax(abs(layer.in_proj_bias)).item(), 0);
  EXPECT_EQ(amax(abs(layer.out_proj.bias)).item(), 0);
}

TEST(MultiheadAttention, packed_and_separate_inputs_agree) {
  MultiheadAttention layer({.size = 12, .heads = 3});
  Generator generator(2);
  const Tensor x = randn({2, 5, 12}, {}, &generator);
  const Tensor packed = layer.attend(x, {.causal = true});
  EXPECT_LT(worst(packed, layer.attend(x, x.clone(), x.clone(), {.causal = true})), 1e-6);
  const Tensor same = x.clone();
  EXPECT_LT(worst(packed, layer.attend(x, same, same, {.causal = true})), 1e-6);
}

TEST(MultiheadAttention, padding_does_not_reach_the_result) {
  MultiheadAttention layer({.size = 8, .heads = 2});
  Generator generator(3);
  const Tensor x = randn({1, 4, 8}, {}, &generator);
  const Tensor real = tensor({1, 1, 0, 0}, {1, 4}).to(DType::kBool);
  const Tensor masked = layer.attend(x, {.key_mask = real}).narrow(1, 0, 2);
  EXPECT_LT(worst(masked, layer(x.narrow(1, 0, 2))), 1e-6);
  const Tensor additive = layer.attend(x, {.mask = zeros({4, 4}), .key_mask = real});
  EXPECT_LT(worst(masked, additive.narrow(1, 0, 2)), 1e-6);
}

TEST(MultiheadAttention, errors_name_the_sizes) {
  EXPECT_THROWS_WITH(MultiheadAttention({.size = 8, .heads = 3}), Error,
                     "MultiheadAttention: size must be a positive multiple of heads; got size=8");
  MultiheadAttention layer({.size = 8, .heads = 2});
  EXPECT_THROWS_WITH(layer(zeros({2, 3, 4})), Error, "x must be [B, T, 8]; got [2, 3, 4] f32 cpu");
  EXPECT_THROWS_WITH(layer.attend(zeros({2, 3, 8}), {.key_mask = zeros({2, 3})}), Error,
                     "key_mask must be [B, S] bool; got [2, 3] f32 cpu");
}

TEST(Positions, rotary_scores_depend_on_distances_only) {
  Generator generator(4);
  const Tensor q = randn({1, 1, 1, 8}, {}, &generator), k = randn({1, 1, 1, 8}, {}, &generator);
  const auto score = [&](int64_t a, int64_t b) {
    return sum(mul(rotary_positions(q, a), rotary_positions(k, b))).item();
  };
  EXPECT_NEAR(score(3, 1), score(10, 8), 1e-5);
  EXPECT_GT(std::abs(score(3, 1) - score(3, 2)), 1e-3);
  EXPECT_LT(worst(rotary_positions(q, 0), q), 1e-7);
  EXPECT_THROWS_WITH(rotary_positions(zeros({1, 1, 1, 3})), Error,
                     "x must be [B, H, T, D] with even D");
}

TEST(Positions, sinusoids_are_those_of_the_paper) {
  const Tensor table = sinusoidal_positions(4, 6);
  EXPECT_NEAR(table.select(0, 3).select(0, 0).item(), std::sin(3.0), 1e-6);
  // Pair 1 of 6 columns turns by 10000^(-2/6) a step.
  EXPECT_NEAR(table.select(0, 3).select(0, 3).item(), std::cos(3 * std::pow(1e4, -2.0 / 6)), 1e-6);
}

TEST(SwiGLU, gates_with_silu) {
  SwiGLU layer({.size = 4, .hidden = 6});
  Generator generator(5);
  const Tensor x = randn({2, 4}, {}, &generator);
  EXPECT_LT(worst(layer(x), layer.w2(silu(layer.w1(x)) * layer.w3(x))), 1e-7);
  RMSNorm norm({.size = 4});
  EXPECT_NEAR(mean(square(norm(x))).item(), 1, 1e-4);
}

TEST(Gpt, has_the_names_and_the_start_of_gpt2) {
  manual_seed(1);
  Gpt gpt({.vocab = 100, .block = 32, .layers = 2, .heads = 4, .size = 64});
  const TensorDict state = gpt.state_dict();
  for (const char* name :
       {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.1.ln_1.bias",
        "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.bias",
        "transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight",
        "transformer.ln_f.weight", "lm_head.weight"}) {
    EXPECT_TRUE(state.contains(name)) << name;
  }
  const auto spread = [&](const std::string& name) { return stddev(state[name]).item(); };
  EXPECT_NEAR(spread("transformer.h.0.attn.c_attn.weight"), 0.02, 0.001);
  EXPECT_NEAR(spread("transformer.h.0.mlp.c_proj.weight"), 0.02 / 2, 0.0005);  // sqrt(2 * 2) = 2
  EXPECT_EQ(amax(abs(state["transformer.h.0.mlp.c_fc.bias"])).item(), 0);
}

TEST(Gpt, ties_its_head_to_the_embedding) {
  Gpt gpt(kSmall);
  EXPECT_TRUE(gpt.lm_head.weight.is_same(gpt.transformer.wte.weight));
  // 19*8 + 12*8 + 2 * (2*16 + 8*24+24 + 8*8+8 + 8*32+32 + 32*8+8) + 16
  EXPECT_EQ(gpt.num_parameters(), 152 + 96 + 2 * (32 + 216 + 72 + 288 + 264) + 16);
  EXPECT_EQ(gpt.num_parameters_without_positions(), gpt.num_parameters() - 96);
  gpt.to(DType::kF64);
  EXPECT_TRUE(gpt.lm_head.weight.is_same(gpt.transformer.wte.weight));
}

TEST(Gpt, starts_near_the_loss_of_guessing) {
  manual_seed(2);
  Gpt gpt(kSmall);
  EXPECT_NEAR(gpt.loss(tokens({4, 12}, 19), tokens({4, 12}, 19, 2)).item(), std::log(19.0), 0.1);
}

TEST(Gpt, a_cache_gives_the_logits_of_reading_everything) {
  manual_seed(3);
  Gpt gpt(kSmall);
  gpt.eval();
  const Tensor text = tokens({2, 9}, 19);
  const NoGradGuard no_grad;
  const Tensor all = gpt(text);
  KeyValueCache cache = gpt.make_cache();
  int64_t read = 0;
  for (const int64_t count : {4, 1, 3, 1}) {  // a prompt, a token, a few at once, a token
    const Tensor logits = gpt.next_logits(text.narrow(1, read, count), cache);
    read += count;
    EXPECT_LT(worst(logits, all.select(1, read - 1)), 1e-5) << read;
  }
  EXPECT_EQ(cache.length(), 9);
  EXPECT_THROWS_WITH(gpt.next_logits(text.narrow(1, 0, 4), cache), Error,
                     "Gpt: the model reads at most 12 tokens; got 13");
}

TEST(Gpt, generates_beyond_its_block_and_repeats_itself_for_a_seed) {
  manual_seed(4);
  Gpt gpt(kSmall);
  const Tensor prompt = tokens({2, 3}, 19);
  const auto run = [&](uint64_t seed, double temperature) {
    Generator generator(seed);
    return gpt.generate(prompt, 20,
                        {.temperature = temperature, .top_k = 5, .generator = &generator});
  };
  const Tensor text = run(1, 1);
  EXPECT_EQ(text.sizes(), (Shape{2, 23}));
  EXPECT_TRUE(equal(text.narrow(1, 0, 3), prompt));
  EXPECT_TRUE(equal(text, run(1, 1)));
  EXPECT_FALSE(equal(text, run(2, 1)));
  EXPECT_TRUE(equal(run(1, 0), run(2, 0)));
  EXPECT_TRUE(gpt.training());
}

TEST(Gpt, generating_leaves_every_module_in_its_mode) {
  Gpt gpt(kSmall);
  gpt.transformer.drop.eval();
  const auto expect_modes = [&] {
    EXPECT_TRUE(gpt.training());
    EXPECT_TRUE(gpt.transformer.h[1].mlp.training());
    EXPECT_FALSE(gpt.transformer.drop.training());
  };
  gpt.generate(tokens({1, 3}, 19), 1);
  expect_modes();
  EXPECT_THROWS_WITH(gpt.generate(tokens({1, 3}, 19), -1), ValueError,
                     "Gpt: generate needs a count of at least 0; got -1");
  EXPECT_THROWS_WITH(gpt.generate(tokens({1, 3}, 19), 1, {.temperature = -1}), ValueError,
                     "temperature=-1");
  expect_modes();
}

TEST(Gpt, its_gelu_is_the_approximation_unless_the_exact_one_is_asked_for) {
  GptOptions options = kSmall;
  options.tanh_gelu = false;
  models::GptMlp usual(nullptr, "", kSmall), exact(nullptr, "", options);
  exact.load_state_dict(usual.state_dict());
  const Tensor x = randn({2, 3, 8}) * 3;
  const auto want = [&](bool tanh) { return usual.c_proj(gelu(usual.c_fc(x), tanh)); };
  EXPECT_LT(worst(usual(x), want(true)), 1e-6);
  EXPECT_LT(worst(exact(x), want(false)), 1e-6);
  EXPECT_GT(worst(want(true), want(false)), 1e-5);
}

TEST(FeedForward, hooks_of_its_first_layer_are_called) {
  int calls = 0;
  const auto count = [&](Module&, const Tensor&, const Tensor&) {
    ++calls;
    return Tensor();
  };
  const Tensor x = randn({1, 3, 8});
  for (const FeedForward activation : {FeedForward::kRelu, FeedForward::kGelu}) {
    TransformerEncoderLayer layer({.size = 8, .heads = 2, .hidden = 16, .activation = activation});
    layer.linear1.register_forward_hook(count);
    layer(x);
  }
  EXPECT_EQ(calls, 2);
  models::GptMlp mlp(nullptr, "", kSmall);
  mlp.c_fc.register_forward_hook(count);
  mlp(x);
  EXPECT_EQ(calls, 3);
}

TEST(Gpt, dropout_is_off_in_evaluation) {
  GptOptions options = kSmall;
  options.dropout = 0.5;
  Gpt gpt(options);
  const Tensor text = tokens({2, 6}, 19);
  const NoGradGuard no_grad;
  EXPECT_GT(worst(gpt(text), gpt(text)), 0);
  gpt.eval();
  EXPECT_EQ(worst(gpt(text), gpt(text)), 0);
}

TEST(Gpt, takes_hugging_face_weights_and_lists_what_is_wrong) {
  Gpt gpt(kSmall), other(kSmall);
  TensorDict published;  // keys without prefix, linear weights [in, out], a mask buffer
  for (const auto& [name, t] : gpt.state_dict()) {
    if (name == "lm_head.weight") continue;
    const std::string key = name.substr(std::string("transformer.").size());
    const bool linear = key.find("c_") != std::string::npos && t.dim() == 2;
    published.add(key, linear ? t.t().contiguous() : t);
  }
  published.add("h.0.attn.bias", ones({1, 1, 12, 12}));
  other.load_state_dict(models::gpt_state_from_huggingface(published));
  const Tensor text = tokens({1, 5}, 19);
  EXPECT_EQ(worst(gpt(text), other(text)), 0);
  GptOptions wide = kSmall;
  wide.vocab = 20;
  Gpt wrong(wide);
  EXPECT_THROWS_WITH(wrong.load_state_dict(gpt.state_dict()), Error,
                     "transformer.wte.weight is [20, 8], given [19, 8]");
}

TEST(Gpt, errors_speak_of_tokens_and_sizes) {
  EXPECT_THROWS_WITH(Gpt({.heads = 5, .size = 8}), Error, "Gpt: size must be a multiple of heads");
  EXPECT_THROWS_WITH(Gpt({.vocab = 0}), Error, "must be positive");
  EXPECT_THROWS_WITH(models::gpt_options("gpt3"), Error, "'gpt3' is none of gpt2, gpt2-medium");
  Gpt gpt(kSmall);
  EXPECT_THROWS_WITH(gpt(tokens({1, 13}, 19)), Error,
                     "Gpt: the model reads at most 12 tokens; got 13");
  EXPECT_THROWS_WITH(gpt(tokens({3}, 19)), Error, "Gpt: tokens must be [B, T]; got [3] i64 cpu");
  EXPECT_THROWS_WITH(gpt(full({1, 2}, 19, {.dtype = DType::kI64})), Error, "19");
  EXPECT_THROWS_WITH(gpt.loss(tokens({1, 3}, 19), tokens({1, 2}, 19)), Error,
                     "targets must have the sizes of tokens");
  EXPECT_THROWS_WITH(gpt.generate(tokens({1, 0}, 19), 1), Error,
                     "generate needs tokens [B, T] with T > 0");
}

TEST(SampleTokens, keeps_to_top_k_and_top_p) {
  // Probabilities 0.5, 0.3, 0.15, 0.05.
  const Tensor logits = log(tensor({0.5, 0.3, 0.15, 0.05}, {1, 4})).expand({200, 4});
  const auto seen = [&](const SampleOptions& options) {
    std::set<int64_t> all;
    for (const int64_t t : sample_tokens(logits, options).to_vector<int64_t>()) all.insert(t);
    return all;
  };
  Generator generator(1);
  EXPECT_EQ(seen({.top_k = 2, .generator = &generator}), (std::set<int64_t>{0, 1}));
  EXPECT_EQ(seen({.top_p = 0.9, .generator = &generator}), (std::set<int64_t>{0, 1, 2}));
  EXPECT_EQ(seen({.top_p = 0.1, .generator = &generator}), (std::set<int64_t>{0}));
  EXPECT_EQ(seen({.temperature = 0, .generator = &generator}), (std::set<int64_t>{0}));
  EXPECT_THROWS_WITH(sample_tokens(logits, {.temperature = -1}), Error, "must not be negative");
  EXPECT_THROWS_WITH(sample_tokens(logits, {.top_p = 0}), Error, "top_p must be in (0, 1]; got 0");
  EXPECT_THROWS_WITH(sample_tokens(zeros({3})), Error, "logits must be [B, V]; got [3] f32 cpu");
}

TEST(KeyValueCacheTest, errors_name_its_room) {
  KeyValueCache cache(1, 2);
  cache.append(0, zeros({1, 1, 2, 4}), zeros({1, 1, 2, 4}));
  cache.advance(2);
  EXPECT_THROWS_WITH(cache.append(0, zeros({1, 1, 1, 4}), zeros({1, 1, 1, 4})), Error,
                     "KeyValueCache: it holds 2 tokens; got 3");
  KeyValueCache wide(1, 4);
  wide.append(0, zeros({1, 1, 2, 4}), zeros({1, 1, 2, 4}));
  wide.advance(2);
  EXPECT_THROWS_WITH(wide.append(0, zeros({2, 1, 1, 4}), zeros({2, 1, 1, 4})), Error,
                     "new tokens must have the batch, heads and dtype of the 2 it holds");
}

TEST(KeyValueCacheTest, layers_and_sizes_are_checked) {
  EXPECT_THROWS_WITH(KeyValueCache(-1, 2), ValueError,
                     "KeyValueCache: layers and capacity must not be negative; got layers=-1");
  KeyValueCache cache(1, 4);
  EXPECT_THROWS_WITH(cache.append(1, zeros({1, 1, 1, 4}), zeros({1, 1, 1, 4})), IndexError,
                     "KeyValueCache: no layer 1; there are 1");
  EXPECT_THROWS_WITH(cache.append(0, zeros({1, 1, 2, 4}), zeros({1, 1, 1, 4})), ShapeError,
                     "KeyValueCache: k and v must be [B, H, T, D] of one T; got k=[1, 1, 2, 4]");
}

TEST(Positions, arguments_are_checked) {
  EXPECT_THROWS_WITH(sinusoidal_positions(-1, 4), ValueError,
                     "sinusoidal_positions: time and size must not be negative; got time=-1");
  EXPECT_THROWS_WITH(rotary_positions(zeros({1, 1, 2, 4}, {.dtype = DType::kI64})), DTypeError,
                     "rotary_positions: x must be floating; got [1, 1, 2, 4] i64");
  EXPECT_THROWS_WITH(rotary_positions(zeros({1, 1, 2, 4}), 0, -1), ValueError,
                     "rotary_positions: base must be positive; got -1");
  EXPECT_THROWS_WITH(MultiheadAttention({.size = 4, .heads = 2, .dropout = 2}), ValueError,
                     "MultiheadAttention: p must be in [0, 1]; got 2");
}

TEST(Bert, errors_speak_of_tokens_and_sizes) {
  const models::BertOptions small{
      .vocab = 9, .positions = 4, .layers = 1, .heads = 2, .size = 8, .hidden = 8, .pooler = false};
  models::Bert bert(small);
  EXPECT_THROWS_WITH(bert(tokens({1, 5}, 9)), Error,
                     "Bert: the model reads at most 4 tokens; got 5");
  EXPECT_THROWS_WITH(bert(tokens({4}, 9)), Error, "Bert: tokens must be [B, T]; got [4] i64 cpu");
  EXPECT_THROWS_WITH(bert.run(tokens({1, 3}, 9), ones({1, 2})), Error,
                     "mask must have the sizes of tokens");
  EXPECT_THROWS_WITH(bert.pooled(zeros({1, 2, 8})), Error, "Bert: this model has no pooler");
  EXPECT_THROWS_WITH(models::Bert({.heads = 3, .size = 8}), Error, "positive multiple of heads");
  EXPECT_THROWS_WITH(models::Bert({.vocab = 0}), Error, "must be positive");
  EXPECT_THROWS_WITH(models::bert_options("x"), Error, "'x' is none of bert-base-uncased");
}

TEST(Bert, minilm_has_as_many_parameters_as_published) {
  const models::BertOptions o = models::bert_options("all-MiniLM-L6-v2");
  const int64_t layer =
      4 * (o.size * o.size + o.size) + 2 * o.size * o.hidden + o.hidden + o.size + 4 * o.size;
  const int64_t around = (o.vocab + o.positions + o.types + 2) * o.size + o.size * o.size + o.size;
  EXPECT_EQ(6 * layer + around, 22713216);
}

}  // namespace
}  // namespace tarn::nn
