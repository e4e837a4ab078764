// wordpiece_files.cpp - WordPiece vocabularies: vocab.txt, and Hugging Face's tokenizer.json.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "tarn/core/error.h"
#include "tarn/core/file.h"
#include "tarn/data/vocab.h"
#include "tarn/data/wordpiece.h"

namespace tarn::data {
namespace {

using nlohmann::json;

constexpr const char* kOp = "wordpiece";

std::vector<std::string> read_lines(const std::string& path) {
  const std::string text = read_file(kOp, path);
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    lines.emplace_back(line);
    at = end + 1;
  }
  return lines;
}

/// A member of a section, and the values with which this tokenizer gives the same ids; none: any.
struct Setting {
  std::string name;
  std::vector<json> allowed;
};

/// Throws unless the section is of this type (or of none) and has no setting but these.
void check_section(const std::string& path, const std::string& name, const json& section,
                   const std::string& type, const std::vector<Setting>& settings) {
  const std::string found =
      section.is_object() ? section.value("type", type) : std::string(section.type_name());
  TARN_CHECK_AS(FileError, found == type, kOp, ": ", path, ": ", name, " is of the type ", found,
                ", not ", type);
  for (const auto& [key, value] : section.items()) {
    if (key == "type") continue;
    const auto known = std::find_if(settings.begin(), settings.end(),
                                    [&key = key](const Setting& s) { return s.name == key; });
    TARN_CHECK_AS(FileError, known != settings.end(), kOp, ": ", path, ": ", name, ".", key,
                  " is no setting that this version knows");
    const auto& allowed = known->allowed;
    if (allowed.empty() || std::find(allowed.begin(), allowed.end(), value) != allowed.end()) {
      continue;
    }
    std::string expected;
    for (const json& v : allowed) expected += (expected.empty() ? "" : " or ") + v.dump();
    tarn::detail::fail<FileError>(kOp, ": ", path, ": ", name, ".", key, " must be ", expected,
                                  ", the only way of this tokenizer; got ", value.dump());
  }
}

/// The tokens that a text may name must be the same ones, found in the same way.
void check_added_tokens(const std::string& path, const json& added, const detail::Vocab& vocab) {
  std::vector<std::string> missing;
  for (const char* special : WordPiece::kSpecials) {
    if (vocab.count(special)) missing.emplace_back(special);
  }
  for (const json& token : added) {
    const std::string text = token.at("content");
    const auto found = std::find(missing.begin(), missing.end(), text);
    TARN_CHECK_AS(FileError, found != missing.end() && token.at("id") == vocab.at(text), kOp, ": ",
                  path, ": added_tokens has '", text, "' with the id ", token.at("id").dump(),
                  "; this tokenizer takes only [PAD], [UNK], [CLS], [SEP] and [MASK] of the "
                  "vocabulary, each once");
    missing.erase(found);
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
      TARN_CHECK_AS(FileError, !token.value(flag, false), kOp, ": ", path, ": added_tokens: ", flag,
                    " of '", text, "' must be false, the only way of this tokenizer");
    }
  }
  TARN_CHECK_AS(FileError, missing.empty(), kOp, ": ", path, ": added_tokens lacks '",
                missing.front(), "', which this tokenizer takes wherever a text names it");
}

/// What encode_sentence() puts round a text.
void check_post_processor(const std::string& path, const json& section,
                          const detail::Vocab& vocab) {
  constexpr const char* kName = "post_processor";
  if (section.is_null()) return;
  TARN_CHECK_AS(FileError, vocab.count("[CLS]") && vocab.count("[SEP]"), kOp, ": ", path,
                ": the vocabulary lacks [CLS] or [SEP]");
  const json first = vocab.at("[CLS]"), last = vocab.at("[SEP]");
  if (section.value("type", "") == "BertProcessing") {
    return check_section(
        path, kName, section, "BertProcessing",
        {{"cls", {json::array({"[CLS]", first})}}, {"sep", {json::array({"[SEP]", last})}}});
  }
  check_section(path, kName, section, "TemplateProcessing",
                {{"single", {}}, {"pair", {}}, {"special_tokens", {}}});
  std::string single;
  for (const json& part : section.at("single")) {
    const bool special = part.contains("SpecialToken");
    const std::string id = part.at(special ? "SpecialToken" : "Sequence").at("id");
    single += (single.empty() ? "" : " ") + id;
  }
  TARN_CHECK_AS(FileError, single == "[CLS] A [SEP]", kOp, ": ", path, ": ", kName,
                ".single must be [CLS] A [SEP], the only way of this tokenizer; got ", single);
  const json& tokens = section.at("special_tokens");
  for (const auto& [token, id] : {std::pair("[CLS]", first), std::pair("[SEP]", last)}) {
    const json& ids = tokens.at(token).at("ids");
    TARN_CHECK_AS(FileError, ids == json::array({id}), kOp, ": ", path, ": ", kName,
                  ".special_tokens gives ", token, " the ids ", ids.dump(), "; the vocabulary ",
                  id.dump());
  }
}

struct Vocabulary {
  std::vector<std::string> tokens;
  bool lowercase = true;
};

Vocabulary read_tokenizer_json(const std::string& path) {
  const std::string text = read_file(kOp, path);
  try {
    const json j = json::parse(text);
    const json& model = j.at("model");
    check_section(path, "model", model, "WordPiece",
                  {{"vocab", {}},
                   {"unk_token", {"[UNK]"}},
                   {"continuing_subword_prefix", {"##"}},
                   {"max_input_chars_per_word", {WordPiece::kLongestWord}}});
    const auto vocab = model.at("vocab").get<detail::Vocab>();
    std::vector<std::string> tokens = detail::tokens_by_id(kOp, path, vocab);
    const json normalizer = j.value("normalizer", json());
    const bool lowercase = !normalizer.is_object() || normalizer.value("lowercase", true);
    check_section(path, "normalizer", normalizer, "BertNormalizer",
                  {{"clean_text", {true}},
                   {"handle_chinese_chars", {true}},
                   {"strip_accents", {nullptr, lowercase}},
                   {"lowercase", {true, false}}});
    check_section(path, "pre_tokenizer", j.value("pre_tokenizer", json()), "BertPreTokenizer", {});
    check_post_processor(path, j.value("post_processor", json()), vocab);
    check_added_tokens(path, j.value("added_tokens", json::array()), vocab);
    return {std::move(tokens), lowercase};
  } catch (const json::exception& e) {
    tarn::detail::fail<FileError>(kOp, ": ", path, " is no tokenizer.json: ", e.what());
  }
}

}  // namespace

std::unique_ptr<WordPiece> WordPiece::load(const std::string& path, bool lowercase) {
  Vocabulary v =
      path.ends_with(".json") ? read_tokenizer_json(path) : Vocabulary{read_lines(path), lowercase};
  try {
    return std::make_unique<WordPiece>(std::move(v.tokens), v.lowercase);
  } catch (const ValueError& e) {
    tarn::detail::fail<FileError>(e.what(), " (in ", path, ")");
  }
}

}  // namespace tarn::data
