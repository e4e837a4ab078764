// wordpiece.cpp - words of a text, and the pieces of a word.
#include "tarn/data/wordpiece.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tarn/core/error.h"
#include "tarn/core/file.h"
#include "tarn/data/unicode.h"

namespace tarn::data {
namespace {

constexpr int64_t kLongestWord = 100;  // in characters

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

bool begins_character(std::string_view text, size_t at) {
  return at == text.size() || (static_cast<uint8_t>(text[at]) & 0xC0) != 0x80;
}

}  // namespace

std::vector<std::string> split_bert(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  const auto finish = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += static_cast<size_t>(c.bytes);
    if (is_space(c.value)) {
      finish();
      continue;
    }
    if (!c.valid || c.value == 0xFFFD || is_control(c.value)) continue;
    std::string folded;
    append_folded(folded, c.value);
    const bool ideograph = is_ideograph(c.value);
    if (ideograph) finish();
    for (size_t i = 0; i < folded.size();) {  // folding may turn one character into several
      const CodePoint f = code_point_at(folded, i);
      const std::string_view part =
          std::string_view(folded).substr(i, static_cast<size_t>(f.bytes));
      const bool alone = is_punctuation(f.value);
      if (alone) finish();
      word += part;
      if (alone) finish();
      i += part.size();
    }
    if (ideograph) finish();
  }
  finish();
  return words;
}

WordPiece::WordPiece(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    TARN_CHECK_AS(ValueError, ids_.emplace(tokens_[i], static_cast<int32_t>(i)).second,
                  "wordpiece: the token '", tokens_[i], "' is in the vocabulary twice");
  }
  padding_ = id("[PAD]");
  unknown_ = id("[UNK]");
  first_ = id("[CLS]");
  last_ = id("[SEP]");
}

std::unique_ptr<WordPiece> WordPiece::load(const std::string& path) {
  const std::string text = read_file("wordpiece", path);
  std::vector<std::string> tokens;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    tokens.emplace_back(line);
    at = end + 1;
  }
  try {
    return std::make_unique<WordPiece>(std::move(tokens));
  } catch (const ValueError& e) {
    tarn::detail::fail<FileError>(e.what(), " (in ", path, ")");
  }
}

int32_t WordPiece::id(const std::string& token) const {
  const auto found = ids_.find(token);
  TARN_CHECK_AS(ValueError, found != ids_.end(), "wordpiece: the vocabulary lacks ", token);
  return found->second;
}

void WordPiece::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  bool known = count_characters(word) <= kLongestWord;
  for (size_t at = 0; known && at < word.size();) {
    const std::string prefix = at == 0 ? "" : "##";
    size_t end = word.size();
    auto found = ids_.end();
    for (; end > at; --end) {
      if (!begins_character(word, end)) continue;
      found = ids_.find(prefix + std::string(word.substr(at, end - at)));
      if (found != ids_.end()) break;
    }
    known = end > at;
    if (known) ids.push_back(found->second);
    at = end;
  }
  if (known) return;
  ids.resize(before);
  ids.push_back(unknown_);
}

std::vector<int32_t> WordPiece::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  for (const std::string& word : split_bert(text)) encode_word(word, ids);
  return ids;
}

std::vector<int32_t> WordPiece::encode_sentence(std::string_view text, int64_t max_length) const {
  TARN_CHECK_AS(ValueError, max_length >= 2, "wordpiece: a sentence needs room for [CLS] and ",
                "[SEP]; got max_length=", max_length);
  std::vector<int32_t> ids = encode(text);
  ids.resize(std::min(ids.size(), static_cast<size_t>(max_length - 2)));
  ids.insert(ids.begin(), first_);
  ids.push_back(last_);
  return ids;
}

std::string WordPiece::piece(int32_t id) const {
  check_id(id);
  const std::string& token = tokens_[static_cast<size_t>(id)];
  return token.starts_with("##") ? token.substr(2) : " " + token;
}

std::string WordPiece::json() const {
  return nlohmann::json{{"kind", "wordpiece"}, {"tokens", tokens_}}.dump();
}

}  // namespace tarn::data
