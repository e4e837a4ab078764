// apps_gpt_resume_test.cpp - what tarn-gpt knows of weights and runs that it goes on from.
#include <filesystem>
#include <fstream>
#include <set>

#include "apps_gpt_tools.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tarn/apps/common/ranks.h"
#include "tarn/apps/common/run_checkpoints.h"
#include "tarn/apps/gpt/checkpoint.h"
#include "tarn/apps/gpt/export.h"
#include "tarn/apps/gpt/setup.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/serialize.h"
#include "tarn/data/tokens.h"
#include "tarn/nn/generate.h"

namespace {

namespace fs = std::filesystem;
using namespace tarn;
using namespace tarn::apps;
using test::Ended;
using test::Process;
using test::slurp;
using test::TempFolder;

std::unique_ptr<nn::models::Gpt> tiny_gpt(const char* gelu = "tanh") {
  GptSettings s;
  s.device = "cpu";
  s.block_size = 8;
  s.n_layer = 1;
  s.n_head = 2;
  s.n_embd = 8;
  s.gelu = gelu;
  return make_gpt(s, 11);
}

TEST(GptHeads, are_told_by_what_is_in_the_file_or_beside_it) {
  const TempFolder folder;
  for (const char* gelu : {"tanh", "exact"}) {
    const auto gpt = tiny_gpt(gelu);
    const std::string at = folder / gelu;
    fs::create_directory(at);
    const auto told = [&](const std::string& path) {
      const GptWeights w = load_gpt_weights(path);
      EXPECT_EQ(w.options.heads, 2) << path;
      EXPECT_FALSE(w.guessed_heads) << path;
      EXPECT_EQ(w.options.tanh_gelu, std::string(gelu) == "tanh") << path;
    };
    export_gpt(at + "/x.safetensors", *gpt, nullptr, DType::kF32);
    told(at + "/x.safetensors");
    export_gpt(at + "/hf", *gpt, nullptr, DType::kF32);
    told(at + "/hf");
    // As Hugging Face writes it: only config.json tells.
    save_safetensors(at + "/hf/model.safetensors",
                     load_safetensors(at + "/hf/model.safetensors").tensors, {{"format", "pt"}});
    told(at + "/hf");
    Checkpoint c{.step = 3};
    c.tensors["model"] = gpt->state_dict();
    store_sizes(c, gpt->options());
    fs::create_directories(at + "/run/checkpoints");
    save_checkpoint(at + "/run/checkpoints/last", c);
    told(at + "/run/checkpoints/last/model.safetensors");
    told(at + "/run/checkpoints/last");
    told(at + "/run");
    EXPECT_EQ(load_gpt_weights(at + "/run", 4).options.heads, 4);  // --n-head has the last word
  }
}

TEST(GptHeads, are_guessed_where_nothing_tells) {
  const TempFolder folder;
  save_safetensors(folder / "x.safetensors", tiny_gpt()->state_dict());
  const GptWeights w = load_gpt_weights(folder / "x.safetensors");
  EXPECT_TRUE(w.guessed_heads);
  EXPECT_EQ(w.options.heads, 1);
  EXPECT_FALSE(load_gpt_weights(folder / "x.safetensors", 2).guessed_heads);
  EXPECT_MESSAGE(ValueError, load_gpt_weights(folder / "x.safetensors", 3),
                 "has a width of 8, which 3 attention heads do not divide; pass --n-head");
  EXPECT_MESSAGE(FileError, load_gpt_weights(folder.str()), "no model.safetensors in the folder ");
  folder.write("config.json", "[");
  EXPECT_MESSAGE(FileError, load_gpt_weights(folder / "x.safetensors"), "config.json is damaged");
}

TEST(SampleTokens, limits_that_vanish_in_f32_take_the_likeliest) {
  const Tensor logits = tensor({1, 3, 2}).view({1, 3});
  for (const double tiny : {1e-29, 1e-39, 1e-300}) {
    EXPECT_EQ(nn::sample_tokens(logits, {.temperature = tiny}).item<int64_t>(), 1) << tiny;
    EXPECT_EQ(nn::sample_tokens(logits, {.top_p = tiny}).item<int64_t>(), 1) << tiny;
  }
}

std::string usage_error(const std::vector<std::string>& arguments) {
  return test::message_of<UsageError>([&] {
    GptSettings s;
    Options options("tarn-gpt", "");
    declare_flags(options, s);
    options.parse(arguments);
    check_settings(s, &options);
  });
}

TEST(GptFlags, are_checked_with_what_they_are_for) {
  for (const char* threads : {"1025", "4294967297"}) {
    EXPECT_NE(usage_error({"--threads", threads}).find("an integer from 0 to 1024"),
              std::string::npos);
  }
  EXPECT_EQ(usage_error({"--sample", "--init-from", "w.safetensors", "--n-head", "3"}), "");
  for (const char* name : {".", "..", "", "/"}) {
    EXPECT_NE(usage_error({"--out-dir", name}).find("expected the name of a new folder"),
              std::string::npos)
        << name;
  }
  EXPECT_NE(usage_error({"--out-dir", "x", "--resume", "y"}).find("is for a new run"),
            std::string::npos);
}

class GptResume : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(program)) GTEST_SKIP() << "the program is not built";
    text = test::write_words(folder);
  }
  std::vector<std::string> small(const std::string& name,
                                 const std::vector<std::string>& more = {}) const {
    return test::small_gpt(text, folder / name, more);
  }
  Ended run(const std::vector<std::string>& arguments) {
    return Process(program, arguments, folder).wait();
  }
  const std::string program = tarn::test::built("tarn-gpt");
  TempFolder folder;
  std::string text;
};

TEST_F(GptResume, flags_that_are_given_now_are_what_trains) {
  ASSERT_EQ(run(small("run", {"--max-iters", "20"})).code, 0);
  const Ended on = run({"--resume", folder / "run", "--max-iters", "40", "--lr", "0.002",
                        "--no-decay-lr", "--beta1", "0.5", "--wd", "0.25"});
  ASSERT_EQ(on.code, 0) << on.err;
  std::ifstream metrics(folder / "run/metrics.jsonl");
  double lr = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto j = nlohmann::json::parse(line);
    if (j.contains("lr")) lr = j.at("lr");
  }
  EXPECT_EQ(lr, 0.002);
  const TensorDict state =
      load_safetensors(folder / "run/checkpoints/last/optim.safetensors").tensors;
  EXPECT_EQ(state.at("param_groups.0.betas").to_vector<double>(), (std::vector<double>{0.5, 0.99}));
  EXPECT_EQ(state.at("param_groups.0.weight_decay").item(), 0.25);
  EXPECT_EQ(state.at("param_groups.1.weight_decay").item(), 0);
}

TEST_F(GptResume, weights_that_are_not_finite_are_never_saved) {
  const Ended end = run(small("run", {"--max-iters", "1", "--lr", "1e30", "--no-decay-lr"}));
  EXPECT_EQ(end.code, 1);
  EXPECT_NE(end.err.find("training: the estimates became "), std::string::npos) << end.err;
  EXPECT_EQ(end.out.find("Done"), std::string::npos) << end.out;
  EXPECT_EQ(load_newest_checkpoint(folder / "run").step, 0);
}

TEST_F(GptResume, heads_that_do_not_fit_the_default_width_fit_the_file) {
  ASSERT_EQ(run(small("run", {"--n-head", "3", "--n-embd", "18", "--max-iters", "1"})).code, 0);
  const std::vector<std::string> sample{"--sample", "--max-new-tokens", "3", "--device",
                                        "cpu",      "--init-from"};
  for (const char* from : {"run", "run/checkpoints/last/model.safetensors"}) {
    auto arguments = sample;
    arguments.insert(arguments.end(), {folder / from, "--n-head", "3", "--tokenizer",
                                       folder / "run/tokenizer.json"});
    const Ended end = run(arguments);
    EXPECT_EQ(end.code, 0) << end.err;
    EXPECT_EQ(end.err.find("note: "), std::string::npos) << end.err;
  }
  auto whole = sample;  // its own heads and its own tokenizer
  whole.push_back(folder / "run");
  EXPECT_EQ(run(whole).code, 0);
}

TEST_F(GptResume, a_run_on_ids_writes_with_the_tokenizer_that_is_named) {
  std::vector<int32_t> ids;
  for (const char c : slurp(text)) ids.push_back(c);
  data::save_nanogpt_tokens(folder / "ids.bin", ids);
  ASSERT_EQ(run(small("run", {"--data", folder / "ids.bin", "--max-iters", "20"})).code, 0);
  const std::vector<std::string> sample{
      "--sample", "--resume", folder / "run", "--start", "the ", "--max-new-tokens", "5"};
  EXPECT_EQ(run(sample).code, 1);  // none is known
  auto named = sample;
  named.insert(named.end(), {"--tokenizer", "byte"});
  const Ended end = run(named);
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_TRUE(end.out.starts_with("the ")) << end.out;
  named[4] = "\xff";  // beyond what the model knows
  EXPECT_NE(run(named).err.find("--start: it has a token 255, and the model knows "),
            std::string::npos);
}

TEST_F(GptResume, weights_read_a_text_with_the_vocabulary_they_were_trained_on) {
  ASSERT_EQ(run(small("run")).code, 0);
  std::string cats;  // fewer letters: a vocabulary of its own would number them anew
  for (int i = 0; i < 200; ++i) cats += "the cat sat. ";
  const std::string fewer = folder.write("cats.txt", cats);
  fs::create_directory(folder / "copy");
  for (const char* from : {"checkpoints/last/model.safetensors", "tokenizer.json"}) {
    fs::copy(folder / (std::string("run/") + from), folder / "copy");
  }
  const auto with = [&](const std::string& name, const std::string& from,
                        const std::vector<std::string>& more) {
    auto arguments = small(name, {"--data", fewer, "--init-from", folder / from});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const std::string words = slurp(text);
  const std::string letters = std::to_string(std::set<char>(words.begin(), words.end()).size());
  for (const char* from : {"run", "run/checkpoints/last", "run/checkpoints/last/model.safetensors",
                           "copy", "copy/model.safetensors"}) {
    const Ended scored = with("unused", from, {"--eval-only"});
    EXPECT_NE(scored.out.find(letters + " different (char)"), std::string::npos)
        << from << scored.out << scored.err;
    const size_t at = scored.out.find("\ntrain loss ");
    ASSERT_NE(at, std::string::npos) << from << scored.err;
    EXPECT_LT(std::stod(scored.out.substr(at + 12)), 1.2) << from;
  }
  const Ended tuned = with("tuned", "copy/model.safetensors", {"--max-iters", "1"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_EQ(slurp(folder / "tuned/tokenizer.json"), slurp(folder / "run/tokenizer.json"));
  for (const char* mode : {"--eval-only", "--find-batch", "--progress"}) {
    const Ended named = with("named", "run", {"--tokenizer", "byte", mode});
    EXPECT_NE(named.err.find("knows " + letters + " tokens, the tokenizer has 256"),
              std::string::npos)
        << mode << named.err;
  }
}

TEST_F(GptResume, weights_without_their_tokenizer_are_not_given_characters_for_tokens) {
  ASSERT_EQ(run(small("run", {"--tokenizer", "byte", "--max-iters", "1"})).code, 0);
  const std::string weights = folder / "bytes.safetensors";
  ASSERT_EQ(run({"--resume", folder / "run", "--export", weights}).code, 0);
  folder.write("tokenizer.json", R"({"version": "1.0", "model": {"type": "BPE", "vocab": {}}})");
  for (const char* mode : {"--eval-only", "--find-batch", "--progress"}) {
    const Ended end = run(small("tuned", {"--init-from", weights, mode}));
    EXPECT_EQ(end.code, 1) << mode;
    EXPECT_NE(end.err.find("no tokenizer for this model: it knows 256 tokens, and words has "),
              std::string::npos)
        << mode << end.err;
    EXPECT_NE(end.err.find("tokenizer.json is Hugging Face's and not read"), std::string::npos)
        << mode << end.err;
  }
  EXPECT_FALSE(fs::exists(folder / "tuned"));
  const auto named = small("tuned", {"--init-from", weights, "--tokenizer", "byte", "--eval-only"});
  EXPECT_EQ(run(named).code, 0);
}

// Rank 0 writes its device into the run's config.json, and each rank has its own.
TEST_F(GptResume, a_restart_takes_no_device_from_the_run) {
  ASSERT_EQ(run(small("run", {"--max-iters", "20"})).code, 0);
  auto config = nlohmann::json::parse(slurp(folder / "run/config.json"));
  config["flags"]["device"] = "cuda:99";
  folder.write("run/config.json", config.dump());
  folder.write(kRunFolderNote, folder / "run");
  setenv("TARN_FLIGHT_DIR", folder.str().c_str(), 1);
  setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  const Ended on = run({"--data", text, "--max-iters", "22"});
  unsetenv("TORCHELASTIC_RESTART_COUNT");
  unsetenv("TARN_FLIGHT_DIR");
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_NE(on.out.find("resumed after step 20\n"), std::string::npos) << on.out;
}

TEST_F(GptResume, an_estimate_that_a_signal_ends_is_no_success) {
  ASSERT_EQ(run(small("run", {"--max-iters", "1"})).code, 0);
  fs::remove(folder / "out.txt");
  Process process(program, {"--eval-only", "--resume", folder / "run", "--eval-iters", "100000000"},
                  folder);
  while (process.running() &&
         slurp(folder / "out.txt").find("tokens a step\n") == std::string::npos)
    usleep(2000);
  usleep(50000);  // until it estimates
  process.signal(SIGTERM);
  const Ended end = process.wait();
  EXPECT_EQ(end.code, 128 + SIGTERM) << end.out << end.err;
  EXPECT_EQ(end.err.find("saving"), std::string::npos) << end.err;
}

TEST_F(GptResume, a_path_need_not_be_utf8) {
  const std::string odd = folder / "caf\xE9.txt";
  std::ofstream(odd) << slurp(text);
  ASSERT_EQ(run(small("run", {"--data", odd, "--max-iters", "20"})).code, 0);
  const Ended on = run({"--resume", folder / "run", "--max-iters", "22"});
  EXPECT_EQ(on.code, 0) << on.err;
}

TEST_F(GptResume, a_cosine_that_is_spread_anew_is_told) {
  ASSERT_EQ(run(small("run", {"--max-iters", "20"})).code, 0);
  const std::string note = "note: the cosine of 20 steps is spread over 22 now";
  const Ended on = run({"--resume", folder / "run", "--max-iters", "22"});
  EXPECT_NE(on.out.find(note), std::string::npos) << on.out << on.err;
  const Ended fixed =
      run({"--resume", folder / "run", "--max-iters", "24", "--lr-decay-iters", "20"});
  EXPECT_EQ(fixed.code, 0) << fixed.err;
  EXPECT_EQ(fixed.out.find("note: "), std::string::npos) << fixed.out;
}

}  // namespace
