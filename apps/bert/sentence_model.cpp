// sentence_model.cpp - weights, sizes, vocabulary and pooling from the files of a model.
#include "tarn/apps/bert/sentence_model.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tarn/core/file.h"
#include "tarn/core/serialize.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nn::models::BertOptions;
using nn::models::SentenceOptions;

constexpr const char* kOp = "tarn-bert";

// read(the parsed file); what it throws about types and missing keys names the file.
template <class Read>
void read_json(const fs::path& path, Read read) {
  const std::string text = read_file(kOp, path.string());
  try {
    read(json::parse(text));
  } catch (const json::exception& e) {
    tarn::detail::fail<FileError>(kOp, ": ", path.string(), " is damaged: ", e.what());
  }
}

template <class Read>
void read_json_if_there(const fs::path& path, Read read) {
  if (is_there(path.string())) read_json(path, read);
}

fs::path weights_file(const std::string& given) {
  return is_folder(given) ? fs::path(given) / "model.safetensors" : fs::path(given);
}

int64_t rows(const TensorDict& state, const std::string& name, const fs::path& path) {
  const Tensor* t = state.find(name);
  TARN_CHECK_AS(FileError, t && t->dim() == 2, kOp, ": ", path.string(),
                " holds no BERT: it lacks a matrix ", name);
  return t->size(0);
}

// All but heads and eps, which the tensors do not tell.
BertOptions sizes_of(const TensorDict& state, const fs::path& path) {
  BertOptions o;
  o.vocab = rows(state, "embeddings.word_embeddings.weight", path);
  o.positions = rows(state, "embeddings.position_embeddings.weight", path);
  o.types = rows(state, "embeddings.token_type_embeddings.weight", path);
  o.hidden = rows(state, "encoder.layer.0.intermediate.dense.weight", path);
  o.size = state.at("embeddings.word_embeddings.weight").size(1);
  o.layers = 0;
  const auto has_layer = [&](int64_t layer) {
    const std::string prefix = "encoder.layer." + std::to_string(layer) + ".";
    return std::any_of(state.begin(), state.end(),
                       [&](const auto& item) { return item.first.starts_with(prefix); });
  };
  while (has_layer(o.layers)) ++o.layers;
  return o;
}

void read_config(const fs::path& path, BertOptions& o) {
  read_json(path, [&](const json& j) {
    const auto expect = [&](const char* key, const char* value) {
      const std::string got = j.value(key, value);
      TARN_CHECK_AS(FileError, got == value, kOp, ": ", path.string(), " says ", key, " = '", got,
                    "'; only '", value, "' can be run");
    };
    expect("model_type", "bert");
    expect("hidden_act", "gelu");
    expect("position_embedding_type", "absolute");
    const auto need = [&](const char* key) -> int64_t {
      TARN_CHECK_AS(FileError, j.contains(key), kOp, ": ", path.string(), " lacks ", key);
      return j[key];
    };
    o.vocab = need("vocab_size");
    o.positions = need("max_position_embeddings");
    o.types = need("type_vocab_size");
    o.layers = need("num_hidden_layers");
    o.heads = need("num_attention_heads");
    o.size = need("hidden_size");
    o.hidden = need("intermediate_size");
    o.eps = j.value("layer_norm_eps", o.eps);
  });
}

std::unique_ptr<nn::models::Bert> load_bert(const BertSettings& s, const fs::path& path) {
  const TensorDict state =
      nn::models::bert_state_from_huggingface(load_safetensors(path.string()).tensors);
  BertOptions o = sizes_of(state, path);
  const fs::path config =
      s.config.empty() ? path.parent_path() / "config.json" : fs::path(s.config);
  const bool told = !s.config.empty() || is_there(config.string());
  if (told) read_config(config, o);
  TARN_CHECK_AS(FileError, told || s.heads > 0, kOp, ": ", config.string(),
                " is missing, and weights do not tell the number of attention heads; pass --config "
                "FILE or --heads N");
  if (s.heads > 0) o.heads = s.heads;
  o.dropout = 0;
  o.pooler = state.contains("pooler.dense.weight");
  auto bert = std::make_unique<nn::models::Bert>(o);
  try {
    bert->load_state_dict(state);
  } catch (const Error& e) {
    tarn::detail::fail<ValueError>(kOp, ": the weights in ", path.string(),
                                   " are not those of the model",
                                   told ? " in " + config.string() : std::string(), ": ", e.what());
  }
  bert->eval();
  bert->to(Device(s.device));
  return bert;
}

std::unique_ptr<data::WordPiece> load_words(const BertSettings& s, const fs::path& folder) {
  bool lowercase = true;
  const fs::path config = folder / "tokenizer_config.json", whole = folder / "tokenizer.json",
                 vocab = folder / "vocab.txt";
  read_json_if_there(config, [&](const json& j) { lowercase = j.value("do_lower_case", true); });
  if (!s.vocab.empty()) return data::WordPiece::load(s.vocab, lowercase);
  // It says all that there is to say, and is what other programs take first.
  if (is_there(whole.string())) return data::WordPiece::load(whole.string(), lowercase);
  if (is_there(vocab.string())) {
    read_json_if_there(config, [&](const json& j) {
      for (const auto& [key, usual] :
           {std::pair{"strip_accents", lowercase}, std::pair{"tokenize_chinese_chars", true}}) {
        const bool same = !j.contains(key) || j[key].is_null() || j[key] == usual;
        TARN_CHECK_AS(FileError, same, kOp, ": ", config.string(), " sets ", key, " to ",
                      j[key].dump(), ", which tarn-bert does not have beside do_lower_case ",
                      lowercase ? "true" : "false");
      }
    });
    return data::WordPiece::load(vocab.string(), lowercase);
  }
  tarn::detail::fail<FileError>(kOp, ": no vocabulary: ", (folder / "vocab.txt").string(),
                                " and tokenizer.json are missing; pass --vocab FILE");
}

// What sentence-transformers keep beside the weights: the steps after BERT, and how they pool.
SentenceOptions sentence_options(const BertSettings& s, const fs::path& folder) {
  SentenceOptions o{.normalize = s.normalize};
  bool normalize = false;
  const fs::path modules = folder / "modules.json";
  read_json_if_there(modules, [&](const json& j) {
    for (const json& module : j) {
      const std::string type = module.at("type");
      const std::string name = type.substr(type.find_last_of('.') + 1);
      normalize = normalize || name == "Normalize";
      TARN_CHECK_AS(FileError, name == "Transformer" || name == "Pooling" || name == "Normalize",
                    kOp, ": ", modules.string(), " asks for a step ", type,
                    ", which tarn-bert does not have");
    }
  });
  if (is_there(modules.string()) && !s.normalize_given) o.normalize = normalize;
  if (s.pooling == "cls") o.pooling = SentenceOptions::Pooling::kFirst;
  if (s.pooling != "auto") return o;
  const fs::path pooling = folder / "1_Pooling" / "config.json";
  read_json_if_there(pooling, [&](const json& j) {
    std::vector<std::string> modes;
    for (const auto& [key, value] : j.items()) {
      if (key.starts_with("pooling_mode_") && value.is_boolean() && value.get<bool>()) {
        modes.push_back(key.substr(13));
      }
    }
    const bool first = modes == std::vector<std::string>{"cls_token"};
    TARN_CHECK_AS(FileError, first || modes == std::vector<std::string>{"mean_tokens"}, kOp, ": ",
                  pooling.string(),
                  " asks for a pooling other than the mean or [CLS]; pass "
                  "--pooling mean or cls for one of these");
    if (first) o.pooling = SentenceOptions::Pooling::kFirst;
  });
  return o;
}

int64_t longest_text(const BertSettings& s, const fs::path& folder, int64_t positions) {
  TARN_CHECK_AS(ValueError, s.max_length <= positions, "--max-length ", s.max_length,
                ": the model reads at most ", positions, " tokens");
  if (s.max_length > 0) return s.max_length;
  int64_t length = positions;
  read_json_if_there(folder / "sentence_bert_config.json", [&](const json& j) {
    if (j.contains("max_seq_length") && !j["max_seq_length"].is_null()) {
      length = std::clamp<int64_t>(j["max_seq_length"], 2, positions);
    }
  });
  return length;
}

}  // namespace

SentenceModel load_sentence_model(const BertSettings& s) {
  const fs::path path = weights_file(s.weights);
  const fs::path folder = path.parent_path();
  SentenceModel model;
  model.bert = load_bert(s, path);
  model.words = load_words(s, folder);
  const int64_t known = model.bert->options().vocab;
  TARN_CHECK_AS(ValueError, model.words->vocab_size() <= known, kOp, ": the vocabulary has ",
                model.words->vocab_size(), " tokens, but the model in ", path.string(),
                " knows only ", known, ": they are not of one model");
  model.options = sentence_options(s, folder);
  model.max_length = longest_text(s, folder, model.bert->options().positions);
  return model;
}

}  // namespace tarn::apps
