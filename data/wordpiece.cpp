// wordpiece.cpp - words of a text, and the pieces of a word.
#include "tarn/data/wordpiece.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "tarn/core/error.h"
#include "tarn/data/unicode.h"

namespace tarn::data {
namespace {

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

// White space, but of the control characters only these three: the others are left out.
bool separates(uint32_t c) {
  return is_space(c) && (!is_control(c) || c == '\t' || c == '\n' || c == '\r');
}

bool begins_character(std::string_view text, size_t at) {
  return at == text.size() || (static_cast<uint8_t>(text[at]) & 0xC0) != 0x80;
}

}  // namespace

std::vector<std::string> split_bert(std::string_view text, bool lowercase) {
  std::vector<std::string> words;
  std::string word;
  const auto finish = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += static_cast<size_t>(c.bytes);
    if (separates(c.value)) {
      finish();
      continue;
    }
    if (!c.valid || c.value == 0xFFFD || is_control(c.value)) continue;
    std::string folded;
    lowercase ? append_folded(folded, c.value) : append_utf8(folded, c.value);
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

WordPiece::WordPiece(std::vector<std::string> tokens, bool lowercase)
    : tokens_(std::move(tokens)), lowercase_(lowercase) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    TARN_CHECK_AS(ValueError, ids_.emplace(tokens_[i], static_cast<int32_t>(i)).second,
                  "wordpiece: the token '", tokens_[i], "' is in the vocabulary twice");
  }
  padding_ = id("[PAD]");
  unknown_ = id("[UNK]");
  first_ = id("[CLS]");
  last_ = id("[SEP]");
  for (const char* special : kSpecials) {
    if (ids_.count(special)) specials_.emplace_back(special);
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

void WordPiece::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  for (const std::string& word : split_bert(text, lowercase_)) encode_word(word, ids);
}

std::vector<int32_t> WordPiece::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t from = 0;  // of the text since the last special token
  for (size_t at = text.find('['); at != std::string_view::npos; at = text.find('[', at)) {
    const auto found = std::find_if(specials_.begin(), specials_.end(), [&](const auto& name) {
      return text.substr(at).starts_with(name);
    });
    if (found == specials_.end()) {
      ++at;
      continue;
    }
    encode_plain(text.substr(from, at - from), ids);
    ids.push_back(id(*found));
    from = at += found->size();
  }
  encode_plain(text.substr(from), ids);
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

const std::string& WordPiece::token(int32_t id) const {
  check_id(id);
  return tokens_[static_cast<size_t>(id)];
}

std::string WordPiece::piece(int32_t id) const {
  const std::string& text = token(id);
  return text.starts_with("##") ? text.substr(2) : " " + text;
}

std::string WordPiece::json() const {
  return nlohmann::json{{"kind", "wordpiece"}, {"lowercase", lowercase_}, {"tokens", tokens_}}
      .dump();
}

}  // namespace tarn::data
