// apps_bert_test.cpp - sentence vectors: a tiny BERT against golden facts, the program, and, where
// it is installed, all-MiniLM-L6-v2 against sentence-transformers.
#include <filesystem>

#include "apps_process.h"
#include "golden/reader.h"
#include <gtest/gtest.h>

#include "tarn/apps/bert/sentences.h"
#include "tarn/core/factory.h"
#include "tarn/core/npz.h"

namespace {

using namespace tarn;
using namespace tarn::apps;
using golden::Json;
using golden::near;
using test::Ended;
using test::Process;
using test::slurp;
using test::TempFolder;
namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

const golden::File& file() {
  static const golden::File f("sentences");
  return f;
}

Texts texts() {
  return file().json("texts").get<Texts>();
}

// The model of golden/golden_sentences.py in a folder: weights, config.json, vocab.txt.
class BertFolder : public testing::Test {
 protected:
  BertFolder() {
    save(weights());
    folder.write("config.json", file().json("config").dump());
    std::string vocab;
    for (const std::string& token : file().json("vocab").get<Texts>()) vocab += token + "\n";
    folder.write("vocab.txt", vocab);
    settings.weights = folder.str();
    settings.device = "cpu";
  }

  static TensorDict weights() {
    TensorDict out;
    for (const auto& [name, tensor] : file().tensors()) {
      if (name.starts_with("model.")) out.add("bert." + name.substr(6), tensor);
    }
    return out;
  }
  void save(const TensorDict& dict) const { save_safetensors(folder / "model.safetensors", dict); }
  void edit_config(const std::string& key, const Json& value) const {
    Json config = file().json("config");
    config[key] = value;
    folder.write("config.json", config.dump());
  }
  void remove(const std::string& name) const { fs::remove(folder / name); }
  SentenceModel load() const { return load_sentence_model(settings); }

  TempFolder folder;
  BertSettings settings;
};

Tensor vectors_of(SentenceModel& model, int64_t batch_size = 4) {
  return sentence_vectors(model, tokenize(model, texts()), batch_size);
}

TEST_F(BertFolder, tokens_are_those_of_hugging_faces_tokenizers) {
  const SentenceModel model = load();
  EXPECT_EQ(model.max_length, 24);
  const std::vector<Sentence> sentences = tokenize(model, texts());
  const Json ids = file().json("ids"), lengths = file().json("lengths");
  ASSERT_EQ(sentences.size(), ids.size());
  for (size_t i = 0; i < sentences.size(); ++i) {
    EXPECT_EQ(sentences[i].ids, ids[i].get<std::vector<int32_t>>()) << sentences[i].text;
    EXPECT_EQ(sentences[i].length, lengths[i].get<int64_t>()) << sentences[i].text;
  }
}

TEST_F(BertFolder, vectors_are_those_of_pytorch_in_any_batch) {
  SentenceModel model = load();
  for (const int64_t batch_size : {1, 5, 100}) {
    EXPECT_TRUE(near(vectors_of(model, batch_size), file().at("mean"), {0, 1e-5})) << batch_size;
  }
  settings.normalize = false;
  SentenceModel raw = load();
  EXPECT_TRUE(near(vectors_of(raw), file().at("raw"), {1e-5, 1e-5}));
  settings.normalize = true;
  settings.pooling = "cls";
  SentenceModel first = load();
  EXPECT_TRUE(near(vectors_of(first), file().at("cls"), {0, 1e-5}));
  EXPECT_EQ(sentence_vectors(model, {}, 4).sizes(), Shape({0, 16}));
}

TEST_F(BertFolder, a_tokenizer_json_does_for_a_vocab_txt) {
  Json vocab = Json::object();
  Json added = Json::array();
  for (const std::string& token : file().json("vocab").get<Texts>()) {
    if (token.size() > 1 && token.front() == '[' && token.rfind("[unused", 0) != 0) {
      added.push_back({{"id", vocab.size()}, {"content", token}});
    }
    vocab[token] = vocab.size();
  }
  const auto tokenizer = [&](bool lowercase) {
    const Json j{{"normalizer", {{"type", "BertNormalizer"}, {"lowercase", lowercase}}},
                 {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                 {"added_tokens", added},
                 {"model", {{"type", "WordPiece"}, {"vocab", vocab}}}};
    return folder.write("tokenizer.json", j.dump());
  };
  remove("vocab.txt");
  tokenizer(true);
  SentenceModel model = load();
  EXPECT_TRUE(near(vectors_of(model), file().at("mean"), {0, 1e-5}));
  settings.vocab = tokenizer(false);
  EXPECT_EQ(load().words->encode("cat CAT caf\u00E9"),
            (std::vector<int32_t>{model.words->id("cat"), model.words->id("[UNK]"),
                                  model.words->id("[UNK]")}));
}

TEST_F(BertFolder, what_sentence_transformers_keep_beside_the_weights_is_followed) {
  const auto modules = [&](const Texts& types) {
    Json list = Json::array();
    for (const std::string& t : types)
      list.push_back({{"type", "sentence_transformers.models." + t}});
    folder.write("modules.json", list.dump());
  };
  using Pooling = nn::models::SentenceOptions::Pooling;
  modules({"Transformer", "Pooling"});
  folder.write("1_Pooling/config.json",
               R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})");
  folder.write("sentence_bert_config.json", R"({"max_seq_length": 9})");
  SentenceModel model = load();
  EXPECT_FALSE(model.options.normalize);
  EXPECT_EQ(model.options.pooling, Pooling::kFirst);
  EXPECT_EQ(model.max_length, 9);
  settings.normalize_given = true;
  settings.pooling = "mean";
  settings.max_length = 12;
  model = load();
  EXPECT_TRUE(model.options.normalize);
  EXPECT_EQ(model.options.pooling, Pooling::kMean);
  EXPECT_EQ(model.max_length, 12);
  settings.normalize_given = false;
  settings.pooling = "auto";
  folder.write("1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})");
  EXPECT_MESSAGE(FileError, load(), "asks for a pooling other than the mean or [CLS]");
  modules({"Transformer", "Pooling", "Dense"});
  EXPECT_MESSAGE(FileError, load(), "asks for a step sentence_transformers.models.Dense");
}

TEST_F(BertFolder, without_a_config_the_heads_must_be_told) {
  remove("config.json");
  EXPECT_MESSAGE(FileError, load(), "pass --config FILE or --heads N");
  settings.heads = 4;
  SentenceModel model = load();
  EXPECT_TRUE(near(vectors_of(model), file().at("mean"), {0, 1e-5}));
  settings.heads = 3;
  EXPECT_MESSAGE(ValueError, load(), "size must be a positive multiple of heads");
}

TEST_F(BertFolder, weights_that_do_not_fit_are_refused_with_every_difference) {
  TensorDict partial;
  for (const auto& [name, tensor] : weights()) {
    if (!name.ends_with("1.output.dense.bias")) partial.add(name, tensor);
  }
  partial.add("bert.extra", ones({1}));
  save(partial);
  edit_config("intermediate_size", 32);
  for (const char* part : {"are not those of the model in ",
                           "missing: ", "layer.1.output.dense.bias", "unexpected: extra",
                           "layer.0.intermediate.dense.weight is [32, 16], "
                           "given [24, 16]",
                           "layer.1.output.dense.weight is [16, 32]"}) {
    EXPECT_MESSAGE(Error, load(), part);
  }
  save({{"fc.weight", ones({2, 2})}});
  EXPECT_MESSAGE(FileError, load(), "holds no BERT: it lacks a matrix embeddings.word_embeddings");
  folder.write("model.safetensors", "nothing");
  EXPECT_MESSAGE(FileError, load(), "model.safetensors");
  settings.weights = folder / "none.safetensors";
  EXPECT_MESSAGE(FileError, load(), "none.safetensors: No such file");
}

TEST_F(BertFolder, what_else_is_wrong_is_said_by_file) {
  edit_config("hidden_act", "relu");
  EXPECT_MESSAGE(FileError, load(), "config.json says hidden_act = 'relu'; only 'gelu'");
  edit_config("num_attention_heads", "four");
  EXPECT_MESSAGE(FileError, load(), "config.json is damaged: ");
  folder.write("config.json", "{");
  EXPECT_MESSAGE(FileError, load(), "config.json is damaged: ");
  folder.write("config.json", file().json("config").dump());
  settings.max_length = 25;
  EXPECT_MESSAGE(ValueError, load(), "--max-length 25: the model reads at most 24 tokens");
  settings.max_length = 0;
  folder.write("tokenizer_config.json", R"({"do_lower_case": true, "strip_accents": false})");
  EXPECT_MESSAGE(FileError, load(), "tokenizer_config.json sets strip_accents to false, which");
  remove("tokenizer_config.json");
  folder.write("vocab.txt", slurp(folder / "vocab.txt") + "further\n");
  EXPECT_MESSAGE(ValueError, load(), "they are not of one model");
  remove("vocab.txt");
  EXPECT_MESSAGE(FileError, load(), "vocab.txt and tokenizer.json are missing; pass --vocab FILE");
  folder.write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {}}})");
  EXPECT_MESSAGE(FileError, load(), "model is of the type BPE, not WordPiece");
  folder.write("tokenizer.json", R"({"model": {"vocab": {"a": 0, "b": 0}}})");
  EXPECT_MESSAGE(FileError, load(), "the ids must be 0 to 1, each once; 'b' has 0");
  folder.write("tokenizer.json", R"({"vocab": {}})");
  EXPECT_MESSAGE(FileError, load(), "is no tokenizer.json");
}

TEST_F(BertFolder, a_link_to_itself_is_a_missing_file) {
  const auto loop = [&](const std::string& name) {
    fs::remove(folder / name);
    fs::create_symlink(folder / name, folder / name);
  };
  loop("modules.json");
  loop("tokenizer_config.json");
  EXPECT_TRUE(load().options.normalize);
  loop("vocab.txt");
  EXPECT_MESSAGE(FileError, load(), "vocab.txt and tokenizer.json are missing; pass --vocab FILE");
  loop("config.json");
  EXPECT_MESSAGE(FileError, load(), "config.json is missing, and weights do not tell");
  loop("loop");
  settings.weights = folder / "loop";
  EXPECT_MESSAGE(FileError, load(), "loop: Too many levels of symbolic links");
}

class TarnBert : public BertFolder {
 protected:
  void SetUp() override {
    if (!fs::exists(program)) GTEST_SKIP() << "the program is not built";
  }
  Ended run(Texts arguments) {
    arguments.insert(arguments.begin(), {"--device", "cpu", "--threads", "1"});
    return Process(program, arguments, folder).wait();
  }
  static std::vector<Json> lines(const std::string& text) {
    std::vector<Json> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
    return out;
  }
  const std::string program = tarn::test::built("tarn-bert");
};

TEST_F(TarnBert, prints_a_line_of_json_a_text) {
  const std::string text = texts()[0];
  const Ended ended = run({folder.str(), text, "the cat"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const std::vector<Json> found = lines(ended.out);
  ASSERT_EQ(found.size(), 2u) << ended.out;
  EXPECT_EQ(found[0].at("text"), text);
  EXPECT_EQ(found[0].at("tokens"), file().json("ids")[0].size());
  const Tensor vector = from_vector(found[0].at("vector").get<std::vector<float>>(), {16});
  EXPECT_TRUE(near(vector, file().at("mean")[0], {0, 1e-5}));
  EXPECT_EQ(ended.err, "");
}

TEST_F(TarnBert, reads_files_and_standard_input_and_writes_arrays) {
  std::string all;
  for (const std::string& text : texts()) all += text + "\n";
  const std::string input = folder.write("texts.txt", all), npy = folder / "v.npy";
  const Ended ended = run({folder / "model.safetensors", "--input", input, "--output", npy});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "");
  EXPECT_NE(ended.err.find("note: 8 of 22 texts are longer than 24 tokens and were cut, the "
                           "first: text 7 (34 tokens)"),
            std::string::npos)
      << ended.err;
  EXPECT_TRUE(near(load_npy(npy), file().at("mean"), {0, 1e-5}));
  const std::string pipe = "printf 'a cat\\r\\n\\nb' | '" + program + "' '" + folder.str() +
                           "' --device cpu --output '" + (folder / "v.jsonl") + "'";
  EXPECT_EQ(Process("/bin/sh", {"-c", pipe}, folder).wait().code, 0);
  const std::vector<Json> found = lines(slurp(folder / "v.jsonl"));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].at("text"), "a cat");
  EXPECT_EQ(found[1].at("tokens"), 2);
}

TEST_F(TarnBert, shows_likeness_and_tokens) {
  const Ended table = run({folder.str(), "the cat", "a mat", "the  CAT", "--similarity"});
  ASSERT_EQ(table.code, 0) << table.err;
  std::istringstream in(table.out);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, "           1       2       3");
  std::getline(in, line);
  EXPECT_TRUE(line.starts_with("   1  1.0000 ") && line.ends_with("  1.0000  the cat")) << line;
  const Ended tokens = run({folder.str(), "Hello there", "--tokens"});
  EXPECT_EQ(lines(tokens.out).at(0).at("tokens"),
            (Texts{"[CLS]", "hello", "the", "##r", "##e", "[SEP]"}));
}

TEST_F(TarnBert, what_cannot_be_done_is_one_clear_error) {
  const auto fails = [&](const Texts& arguments, int code, const std::string& message) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, code) << message;
    EXPECT_EQ(ended.err.find("tarn-bert: error: "), 0u) << ended.err;
    EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
  };
  fails({}, 2, "weights is required");
  fails({folder.str(), "a", "--input", "b.txt"}, 2, "from the command line or from --input");
  fails({folder.str(), "a", "--tokens", "--output", "b.npy"}, 2, "--tokens prints no vectors");
  fails({folder.str(), "a", "--pooling", "max"}, 2, "--pooling: expected");
  fails({folder.str(), "--input", folder / "none.txt"}, 1, "none.txt: No such file");
  fails({folder / "none", "a"}, 1, "none: No such file");
  fails({folder.str(), "a", "--output", folder / "none/v.npy"}, 1, "none/v.npy");
  fails({folder.str(), "a", "--threads", "4294967297"}, 2, "an integer from 0 to 1024");
  fails({folder.str(), "a", "--device", "abc"}, 2, "--device: expected auto, cpu, cuda or");
  Json config = Json::parse(slurp(folder / "config.json"));
  config.erase("max_position_embeddings");
  folder.write("config.json", config.dump());
  // The program's name stands in front once.
  fails({folder.str(), "a"}, 1,
        "tarn-bert: error: " + folder / "config.json lacks max_position_embeddings");
}

// What golden/minilm_reference.py needs to make its file of facts is in its text.
TEST_F(TarnBert, all_minilm_l6_v2_gives_the_vectors_of_sentence_transformers) {
  const char* chosen = std::getenv("TARN_PYTHON");
  const std::string python = chosen ? chosen : "python3", facts = folder / "facts.json";
  const Ended made =
      Process("/usr/bin/env", {python, TARN_SOURCE_DIR "/tests/golden/minilm_reference.py", facts},
              folder)
          .wait();
  if (made.code == 77) GTEST_SKIP() << made.err;
  if (made.code == 127 && chosen == nullptr) GTEST_SKIP() << "there is no python3 here";
  ASSERT_EQ(made.code, 0) << made.err;
  const Json reference = Json::parse(slurp(facts));
  const std::string model = reference.at("model"), input = reference.at("input");
  const Ended ids = run({model, "--input", input, "--tokens"});
  ASSERT_EQ(ids.code, 0) << ids.err;
  const std::vector<Json> got = lines(ids.out);
  ASSERT_EQ(got.size(), reference.at("ids").size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].at("ids"), reference.at("ids")[i]) << got[i].at("text");
  }
  const Ended ended = run({model, "--input", input, "--output", folder / "v.npy"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const Tensor want = load_npy(reference.at("vectors")), all = load_npy(folder / "v.npy");
  EXPECT_TRUE(near(all.narrow(0, 0, want.size(0)), want, {0, 1e-5}));
}

}  // namespace
