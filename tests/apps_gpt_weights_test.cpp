// apps_gpt_weights_test.cpp - published weights in three conventions, read and written, and text
// with a cache.
#include "temp_folder.h"
#include <gtest/gtest.h>

#include "tarn/apps/gpt/checkpoint.h"
#include "tarn/apps/gpt/export.h"
#include "tarn/apps/gpt/setup.h"
#include "tarn/apps/gpt/trainer.h"
#include "tarn/apps/gpt/write_text.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/core/serialize.h"
#include "tarn/data/bpe.h"

namespace {

using namespace tarn;
using namespace tarn::apps;
using nn::models::Gpt;
using test::slurp;
using test::TempFolder;

GptSettings settings() {
  GptSettings s;
  s.device = "cpu";
  s.block_size = 8;
  s.n_layer = 2;
  s.n_head = 2;
  s.n_embd = 8;
  s.bias = true;
  return s;
}

// A model whose every parameter differs, biases too.
std::unique_ptr<Gpt> some_gpt() {
  manual_seed(3);
  auto gpt = make_gpt(settings(), 11);
  const NoGradGuard no_grad;
  for (auto& [name, p] : gpt->named_parameters()) {
    Tensor(p).copy_(p + randn(p.sizes()) * 0.3);
  }
  gpt->eval();
  return gpt;
}

std::vector<float> logits(Gpt& gpt) {
  const NoGradGuard no_grad;
  return gpt(from_vector(std::vector<int64_t>{1, 10, 3, 0}, {1, 4})).to_vector<float>();
}

// As Hugging Face writes it: linear weights turned, mask buffers, no lm_head, no prefix.
TensorDict huggingface(const Gpt& gpt) {
  TensorDict out;
  for (const auto& [name, tensor] : gpt.state_dict()) {
    if (name == "lm_head.weight") continue;
    const bool linear = name.ends_with(".weight") && name.find("c_") != std::string::npos;
    out.add(name.substr(std::string("transformer.").size()),
            (linear ? tensor.t() : tensor).detach().contiguous());
  }
  out.add("h.0.attn.bias", ones({1, 1, 8, 8}));
  return out;
}

std::string words(std::initializer_list<int32_t> values) {
  std::string bytes;
  for (const int32_t v : values) bytes.append(reinterpret_cast<const char*>(&v), 4);
  return bytes;
}

// As llm.c writes it, the vocabulary padded from 11.
std::string llmc(const Gpt& gpt, int32_t version = 3, int32_t padded = 16) {
  std::string file = words({20240326, version, 8, 11, 2, 2, 8, padded});
  file.resize(1024);
  const TensorDict state = gpt.state_dict();
  const auto add = [&](const std::string& name) {
    const Tensor t = state.at("transformer." + name).detach().contiguous();
    file.append(static_cast<const char*>(t.data()), static_cast<size_t>(t.numel()) * 4);
  };
  add("wte.weight");
  file.append(static_cast<size_t>(padded - 11) * 8 * 4, '\0');
  add("wpe.weight");
  for (const char* kind :
       {"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
        "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
        "mlp.c_proj.weight", "mlp.c_proj.bias"}) {
    add(std::string("h.0.") + kind);
    add(std::string("h.1.") + kind);
  }
  add("ln_f.weight");
  add("ln_f.bias");
  return file;
}

TEST(GptWeightFiles, every_convention_gives_the_same_model) {
  const TempFolder folder;
  const auto gpt = some_gpt();
  save_safetensors(folder / "own.safetensors", gpt->state_dict());
  save_safetensors(folder / "hf.safetensors", huggingface(*gpt));
  folder.write("llmc.bin", llmc(*gpt));
  for (const char* name : {"own.safetensors", "hf.safetensors", "llmc.bin"}) {
    const auto again = make_gpt(settings(), load_gpt_weights(folder / name, 2), name);
    again->eval();
    EXPECT_EQ(logits(*again), logits(*gpt)) << name;
  }
}

TEST(GptWeightFiles, what_is_written_for_others_is_what_they_write) {
  const TempFolder folder;
  const auto gpt = some_gpt();
  export_gpt(folder / "x.bin", *gpt, nullptr, DType::kF32);
  EXPECT_EQ(slurp(folder / "x.bin"), llmc(*gpt, 3, 128));
  TensorDict hf;
  for (const auto& [name, tensor] : huggingface(*gpt)) {
    if (name != "h.0.attn.bias") hf.add(name, tensor);
  }
  save_safetensors(folder / "hf.safetensors", hf,
                   {{"format", "pt"}, {"n_head", "2"}, {"activation_function", "gelu_new"}});
  export_gpt(folder / "x.safetensors", *gpt, nullptr, DType::kF32);
  EXPECT_EQ(slurp(folder / "x.safetensors"), slurp(folder / "hf.safetensors"));
  const auto bpe = data::train_bpe("low lower lowest low low", 262);
  export_gpt(folder / "x", *gpt, bpe.get(), DType::kF32);
  EXPECT_EQ(slurp(folder / "x/model.safetensors"), slurp(folder / "hf.safetensors"));
  EXPECT_NE(slurp(folder / "x/config.json").find("\"n_layer\": 2"), std::string::npos);
  EXPECT_EQ(data::Bpe::load(folder / "x")->vocab_size(), bpe->vocab_size());
}

TEST(GptWeightFiles, which_gelu_is_written_where_there_is_a_place_for_it) {
  const TempFolder folder;
  export_gpt(folder / "tanh", *some_gpt(), nullptr, DType::kF32);
  EXPECT_NE(slurp(folder / "tanh/config.json").find(R"("activation_function": "gelu_new")"),
            std::string::npos);
  GptSettings s = settings();
  s.gelu = "exact";
  const auto exact = make_gpt(s, 11);
  exact->load_state_dict(some_gpt()->state_dict());
  exact->eval();
  EXPECT_NE(logits(*exact), logits(*some_gpt()));
  export_gpt(folder / "exact", *exact, nullptr, DType::kF32);
  EXPECT_NE(slurp(folder / "exact/config.json").find(R"("activation_function": "gelu")"),
            std::string::npos);
  EXPECT_MESSAGE(ValueError, export_gpt(folder / "x.bin", *exact, nullptr, DType::kF32),
                 "llm.c computes GELU by tanh, and this model was trained with the exact one");
}

TEST(GptCheckpoint, keeps_which_gelu_and_an_older_one_had_no_choice) {
  for (const bool tanh : {true, false}) {
    Checkpoint c;
    store_sizes(c, {.block = 8, .layers = 2, .tanh_gelu = tanh});
    EXPECT_EQ(restore_sizes(c).tanh_gelu, tanh);
    EXPECT_EQ(restore_sizes(c).layers, 2);
    c.values.erase("exact_gelu");
    EXPECT_TRUE(restore_sizes(c).tanh_gelu);
  }
}

TEST(GptWeightFiles, halves_and_missing_biases_come_back_as_the_same_model) {
  const TempFolder folder;
  GptSettings s = settings();
  s.bias = false;
  const auto plain = make_gpt(s, 11);
  plain->eval();
  export_gpt(folder / "x.bin", *plain, nullptr, DType::kF32);
  const auto again = make_gpt(s, load_gpt_weights(folder / "x.bin"), "x");
  const std::vector<float> got = logits(*again), want = logits(*plain);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got.at(i), want[i], 1e-6) << i;
  const auto gpt = some_gpt();
  for (const char* name : {"x.bin", "x.safetensors"}) {
    export_gpt(folder / name, *gpt, nullptr, DType::kBF16);
    const TensorDict read = make_gpt(s, load_gpt_weights(folder / name, 2), name)->state_dict();
    for (const auto& [key, tensor] : gpt->state_dict()) {
      const Tensor rounded = tensor.detach().to(DType::kBF16).to(DType::kF32);
      EXPECT_TRUE(equal(read.at(key).detach(), rounded)) << name << " " << key;
    }
  }
  EXPECT_MESSAGE(DTypeError, export_gpt(folder / "h.bin", *gpt, nullptr, DType::kF16),
                 "llm.c knows f32 and bf16; got f16");
  EXPECT_MESSAGE(FileError, export_gpt(folder / "none/x.bin", *gpt, nullptr, DType::kF32),
                 "none/x.bin");
}

TEST(GptText, is_shown_without_what_would_change_the_terminal) {
  EXPECT_EQ(shown_text("God\tsaid\r\n\xC3\xA9 \xF0\x9F\x99\x82"),
            "God\tsaid\n\xC3\xA9 \xF0\x9F\x99\x82");
  EXPECT_EQ(shown_text("a\x1B[2J\x7F\xFF\xC3"),
            "a\xEF\xBF\xBD[2J\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(shown_text("\xC2\x9B"), "\xEF\xBF\xBD") << "a control character of two bytes";
  EXPECT_EQ(shown_text(""), "");
  ShownText pieces;
  EXPECT_EQ(pieces.next("a\xF0\x9F"), "a") << "half a character waits";
  EXPECT_EQ(pieces.next("\x99"), "");
  EXPECT_EQ(pieces.next("\x82z\xC3"), "\xF0\x9F\x99\x82z");
  EXPECT_EQ(pieces.next("z\x1B"), "\xEF\xBF\xBDz\xEF\xBF\xBD") << "what never came";
  EXPECT_EQ(pieces.next("\xE2\x82"), "");
  EXPECT_EQ(pieces.rest(), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(pieces.rest(), "");
}

TEST(GptWeightFiles, an_export_replaces_no_file_of_a_run) {
  const TempFolder folder;
  const auto gpt = some_gpt();
  folder.write("run/config.json", "{}");
  folder.write("run/checkpoints/step-1/manifest.json", "{}");
  EXPECT_MESSAGE(ValueError, export_gpt(folder / "run", *gpt, nullptr, DType::kF32),
                 "files of a run would be replaced; pass a name outside of it");
  for (const char* name : {"", "/model.safetensors", "/x.bin"}) {
    const std::string path = folder / "run/checkpoints/step-1" + name;
    EXPECT_MESSAGE(ValueError, export_gpt(path, *gpt, nullptr, DType::kF32),
                   "files of a checkpoint would be replaced");
  }
  EXPECT_EQ(slurp(folder / "run/config.json"), "{}");
  export_gpt(folder / "run/x.bin", *gpt, nullptr, DType::kF32);
}

TEST(GptWeightFiles, a_shorter_block_leaves_positions_out) {
  const TempFolder folder;
  const auto gpt = some_gpt();
  save_safetensors(folder / "own.safetensors", gpt->state_dict());
  GptSettings s = settings();
  s.block_size = 4;
  const auto again = make_gpt(s, load_gpt_weights(folder / "own.safetensors", 2), "own");
  EXPECT_EQ(again->options().block, 4);
  s.block_size = 9;
  EXPECT_MESSAGE(ValueError, make_gpt(s, load_gpt_weights(folder / "own.safetensors", 2), "own"),
                 "--block-size 9: the model in own reads at most 8 tokens");
  again->eval();
  EXPECT_EQ(logits(*again), logits(*gpt));
}

TEST(GptWeightFiles, wrong_ones_are_refused_by_name) {
  const TempFolder folder;
  const auto gpt = some_gpt();
  save_safetensors(folder / "x.safetensors", {{"fc.weight", ones({2, 2})}});
  EXPECT_MESSAGE(FileError, load_gpt_weights(folder / "x.safetensors"),
                 "x.safetensors holds no GPT-2: it lacks a matrix wte.weight");
  TensorDict partial;
  for (const auto& [name, tensor] : gpt->state_dict()) {
    if (!name.ends_with("h.1.ln_2.bias") && !name.ends_with("h.0.mlp.c_fc.weight")) {
      partial.add(name, tensor);
    }
  }
  save_safetensors(folder / "p.safetensors", partial);
  const auto load = [&] {
    return make_gpt(settings(), load_gpt_weights(folder / "p.safetensors", 2), "p.safetensors");
  };
  EXPECT_MESSAGE(ValueError, load(), "the weights in p.safetensors are not those of a whole GPT-2");
  EXPECT_MESSAGE(ValueError, load(), "transformer.h.1.ln_2.bias");
  EXPECT_MESSAGE(ValueError, load(), "transformer.h.0.mlp.c_fc.weight");
  std::string file = llmc(*gpt);
  file.pop_back();
  EXPECT_MESSAGE(FileError, load_gpt_weights(folder.write("t.bin", file)), "t.bin: truncated");
  EXPECT_MESSAGE(FileError, load_gpt_weights(folder.write("v.bin", llmc(*gpt, 2))),
                 "of version 2; versions 3 (f32) and 5 (bf16)");
  file = llmc(*gpt);
  file.replace(16, 4, words({-2}));
  EXPECT_MESSAGE(FileError, load_gpt_weights(folder.write("d.bin", file)), "damaged: the header");
  file = llmc(*gpt);
  file.replace(16, 4, words({0x7FFFFFFF}));
  EXPECT_MESSAGE(FileError, load_gpt_weights(folder.write("h.bin", file)),
                 "truncated: its sizes take more than ");
  EXPECT_MESSAGE(FileError, load_llmc_checkpoint(folder.write("n.bin", std::string(1024, 'x'))),
                 "no llm.c checkpoint");
}

std::vector<int32_t> written(Gpt& gpt, bool cache, std::vector<int32_t> prompt, int64_t top_k) {
  Generator generator(5);
  std::vector<int32_t> ids;
  write_tokens(gpt, std::move(prompt),
               {.count = 30,
                .sampling = {.temperature = 0.9, .top_k = top_k, .generator = &generator},
                .kv_cache = cache},
               [&](int32_t id) {
                 ids.push_back(id);
                 return true;
               });
  return ids;
}

TEST(GptText, the_cache_changes_nothing_not_even_past_the_block) {
  const auto gpt = some_gpt();
  gpt->train();
  const std::vector<int32_t> whole = written(*gpt, false, {1, 2, 3}, 5);
  EXPECT_EQ(written(*gpt, true, {1, 2, 3}, 5), whole);
  EXPECT_EQ(whole.size(), 30u);
  EXPECT_TRUE(gpt->training());
  const std::vector<int32_t> longer{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2};  // block: 8
  EXPECT_EQ(written(*gpt, true, longer, 0), written(*gpt, false, longer, 0));
}

TEST(GptText, writing_stops_when_it_is_told_to) {
  const auto gpt = some_gpt();
  int calls = 0;
  write_tokens(*gpt, {1}, {.count = 30, .sampling = {}}, [&](int32_t) { return ++calls < 3; });
  EXPECT_EQ(calls, 3);
  EXPECT_MESSAGE(ValueError, write_tokens(*gpt, {}, {}, {}), "the prompt is empty");
}

TEST(GptText, the_model_gets_its_modes_back_also_after_an_exception) {
  const auto gpt = some_gpt();
  gpt->train();
  gpt->transformer.drop.eval();
  const auto write = [&] {
    write_tokens(*gpt, {1}, {.count = 3, .sampling = {}}, [&](int32_t) -> bool {
      EXPECT_FALSE(gpt->training());
      throw std::runtime_error("enough");
    });
  };
  EXPECT_MESSAGE(std::runtime_error, write(), "enough");
  EXPECT_TRUE(gpt->training());
  EXPECT_FALSE(gpt->transformer.drop.training());
}

TEST(GptTrainerTest, an_estimate_gives_the_model_its_modes_back_also_after_an_exception) {
  const std::vector<int32_t> ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1};
  const Corpus corpus{.name = "ids",
                      .tokenizer = nullptr,
                      .train = data::Tokens(ids),
                      .val = data::Tokens(ids),
                      .vocab = 11};
  GptSettings s = settings();
  s.eval_iters = 1;
  s.batch_size = 2;
  const auto gpt = some_gpt();
  gpt->train();
  gpt->transformer.drop.eval();
  GptTrainer trainer(s, corpus, *gpt, nullptr);
  ASSERT_TRUE(trainer.estimate());
  EXPECT_TRUE(gpt->training());
  EXPECT_FALSE(gpt->transformer.drop.training());
  gpt->transformer.wte.register_forward_hook(
      [&](nn::Module& wte, const Tensor&, const Tensor&) -> Tensor {
        EXPECT_FALSE(wte.training());
        throw std::runtime_error("enough");
      });
  EXPECT_MESSAGE(std::runtime_error, trainer.estimate(), "enough");
  EXPECT_TRUE(gpt->training());
  EXPECT_TRUE(gpt->transformer.wte.training());
}

TEST(GptText, a_prompt_comes_from_a_file_or_is_the_end_of_text) {
  const TempFolder folder;
  const data::ByteTokenizer bytes;
  EXPECT_EQ(prompt_ids("FILE:" + folder.write("p.txt", "ab"), bytes),
            (std::vector<int32_t>{97, 98}));
  EXPECT_EQ(prompt_ids("", bytes), (std::vector<int32_t>{'\n'}));
  EXPECT_EQ(prompt_ids("", *data::CharTokenizer::of("ab")), (std::vector<int32_t>{0}));
  EXPECT_MESSAGE(FileError, prompt_ids("FILE:" + (folder / "none"), bytes), "none");
}

}  // namespace
