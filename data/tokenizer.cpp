// tokenizer.cpp - bytes and characters as tokens, and reading a tokenizer back.
#include "tarn/data/tokenizer.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <nlohmann/json.hpp>

#include "tarn/core/error.h"
#include "tarn/core/file.h"
#include "tarn/data/bpe.h"
#include "tarn/data/unicode.h"
#include "tarn/data/wordpiece.h"

namespace tarn::data {

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += piece(id);
  return text;
}

void Tokenizer::check_id(int32_t id) const {
  TARN_CHECK_AS(IndexError, id >= 0 && id < vocab_size(), kind(), " tokenizer: no token ", id,
                " in a vocabulary of ", vocab_size());
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids(text.size());
  std::transform(text.begin(), text.end(), ids.begin(),
                 [](char c) { return static_cast<uint8_t>(c); });
  return ids;
}

std::string ByteTokenizer::piece(int32_t id) const {
  check_id(id);
  return std::string(1, static_cast<char>(id));
}

std::string ByteTokenizer::json() const {
  return R"({"kind": "byte"})";
}

std::unique_ptr<CharTokenizer> CharTokenizer::of(std::string_view text) {
  TARN_CHECK_AS(ValueError, !text.empty(), "char tokenizer: the text is empty");
  std::set<uint32_t> seen;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    TARN_CHECK_AS(ValueError, c.valid, "char tokenizer: the text is not UTF-8 (byte ", c.value,
                  " at offset ", at, "); the byte tokenizer takes any bytes");
    seen.insert(c.value);
    at += static_cast<size_t>(c.bytes);
  }
  std::vector<std::string> chars;
  for (const uint32_t c : seen) append_utf8(chars.emplace_back(), c);
  return std::make_unique<CharTokenizer>(std::move(chars));
}

CharTokenizer::CharTokenizer(std::vector<std::string> chars) : chars_(std::move(chars)) {
  for (size_t i = 0; i < chars_.size(); ++i) {
    const bool one = !chars_[i].empty() &&
                     static_cast<size_t>(code_point_at(chars_[i], 0).bytes) == chars_[i].size();
    TARN_CHECK_AS(ValueError, one, "char tokenizer: entry ", i, " is not one character: '",
                  chars_[i], "'");
    const bool fresh =
        ids_.emplace(code_point_at(chars_[i], 0).value, static_cast<int32_t>(i)).second;
    TARN_CHECK_AS(ValueError, fresh, "char tokenizer: '", chars_[i], "' is there twice");
  }
}

std::vector<int32_t> CharTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    const auto found = c.valid ? ids_.find(c.value) : ids_.end();
    TARN_CHECK_AS(ValueError, found != ids_.end(), "char tokenizer: '",
                  text.substr(at, static_cast<size_t>(c.bytes)), "' at offset ", at,
                  " is not among the ", vocab_size(), " characters of the vocabulary");
    ids.push_back(found->second);
    at += static_cast<size_t>(c.bytes);
  }
  return ids;
}

std::string CharTokenizer::piece(int32_t id) const {
  check_id(id);
  return chars_[static_cast<size_t>(id)];
}

std::string CharTokenizer::json() const {
  return nlohmann::json{{"kind", "char"}, {"vocab_size", vocab_size()}, {"itos", chars_}}.dump();
}

namespace {

// Hugging Face's library writes all it knows of words and merges under "model".
bool is_huggingface(const nlohmann::json& j) {
  return j.contains("model") && !j.contains("kind") && !j.contains("itos");
}

}  // namespace

bool is_huggingface_tokenizer(const std::string& path) {
  const std::string text = read_file("load_tokenizer", path);
  return is_huggingface(nlohmann::json::parse(text, nullptr, false));
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  const std::string text = read_file("load_tokenizer", path);
  try {
    const nlohmann::json j = nlohmann::json::parse(text);
    TARN_CHECK_AS(FileError, !is_huggingface(j), "load_tokenizer: ", path,
                  " is Hugging Face's; pass the folder with vocab.json and merges.txt");
    const std::string kind = j.value("kind", "char");
    if (kind == "byte") return std::make_unique<ByteTokenizer>();
    if (kind == "bpe") {
      return std::make_unique<Bpe>(j.at("merges").get<std::vector<Bpe::Merge>>(),
                                   j.at("specials").get<std::vector<std::string>>());
    }
    if (kind == "wordpiece") {
      return std::make_unique<WordPiece>(j.at("tokens").get<std::vector<std::string>>(),
                                         j.value("lowercase", true));
    }
    TARN_CHECK_AS(FileError, kind == "char", "load_tokenizer: ", path, " is of the kind '", kind,
                  "'; this version knows byte, char, bpe and wordpiece");
    return std::make_unique<CharTokenizer>(j.at("itos").get<std::vector<std::string>>());
  } catch (const nlohmann::json::exception& e) {
    tarn::detail::fail<FileError>("load_tokenizer: ", path, " is damaged: ", e.what());
  } catch (const ValueError& e) {
    tarn::detail::fail<FileError>("load_tokenizer: ", path, " is damaged: ", e.what());
  }
}

}  // namespace tarn::data
