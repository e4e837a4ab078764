// wordpiece_files.cpp - WordPiece vocabularies: vocab.txt, and Hugging Face's tokenizer.json.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "tarn/core/error.h"
#include "tarn/core/file.h"
#include "tarn/data/vocab.h"
#include "tarn/data/wordpiece.h"

namespace tarn::data {
namespace {

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

struct Vocabulary {
  std::vector<std::string> tokens;
  bool lowercase = true;
};

Vocabulary read_tokenizer_json(const std::string& path) {
  const std::string text = read_file(kOp, path);
  try {
    const nlohmann::json j = nlohmann::json::parse(text);
    const nlohmann::json& model = j.at("model");
    const std::string type = model.value("type", "WordPiece");
    TARN_CHECK_AS(FileError, type == "WordPiece", kOp, ": ", path, " is a tokenizer of the type ",
                  type, ", not WordPiece");
    const nlohmann::json normalizer = j.value("normalizer", nlohmann::json::object());
    return {detail::tokens_by_id(kOp, path, model.at("vocab").get<detail::Vocab>()),
            normalizer.is_object() ? normalizer.value("lowercase", true) : true};
  } catch (const nlohmann::json::exception& e) {
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
