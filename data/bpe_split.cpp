// bpe_split.cpp - cutting a text into the pieces that GPT-2 merges inside of.
#include "tarn/data/bpe.h"
#include "tarn/data/unicode.h"

namespace tarn::data {
namespace {

enum class Kind : uint8_t { kLetter, kNumber, kSpace, kOther };

struct Next {
  Kind kind;
  size_t bytes;
};

Next classify(std::string_view text, size_t at) {
  const CodePoint c = code_point_at(text, at);
  const auto bytes = static_cast<size_t>(c.bytes);
  if (!c.valid) return {Kind::kOther, bytes};
  if (is_letter(c.value)) return {Kind::kLetter, bytes};
  if (is_number(c.value)) return {Kind::kNumber, bytes};
  if (is_space(c.value)) return {Kind::kSpace, bytes};
  return {Kind::kOther, bytes};
}

// Length of 's 't 're 've 'm 'll 'd at this place; 0 if there is none.
size_t contraction(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  if (std::string_view("stmd").find(text[1]) != std::string_view::npos) return 2;
  const std::string_view two = text.substr(1, 2);
  return two == "re" || two == "ve" || two == "ll" ? 3 : 0;
}

// The end of the run of one kind that begins at `at`; last: where its last character begins.
size_t run_end(std::string_view text, size_t at, Kind kind, size_t* last = nullptr) {
  while (at < text.size()) {
    const Next next = classify(text, at);
    if (next.kind != kind) break;
    if (last) *last = at;
    at += next.bytes;
  }
  return at;
}

// White space leaves its last character to the word that follows, unless it is all there is: a
// space joins the word, anything else stands alone.
size_t white_space_end(std::string_view text, size_t at) {
  size_t last = at;
  const size_t end = run_end(text, at, Kind::kSpace, &last);
  return end == text.size() || last == at ? end : last;
}

size_t piece_end(std::string_view text, size_t at) {
  if (const size_t n = contraction(text.substr(at))) return at + n;
  const size_t body = text[at] == ' ' ? at + 1 : at;
  if (body < text.size()) {
    const Kind kind = classify(text, body).kind;
    if (kind != Kind::kSpace) return run_end(text, body, kind);
  }
  return white_space_end(text, at);
}

}  // namespace

void split_gpt2(std::string_view text, const std::function<void(std::string_view)>& f) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = piece_end(text, at);
    f(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace tarn::data
