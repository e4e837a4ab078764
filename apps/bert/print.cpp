// print.cpp - what tarn-bert prints.
#include "tarn/apps/bert/print.h"

#include <charconv>
#include <cmath>

#include "tarn/apps/common/json_object.h"
#include "tarn/apps/common/text.h"
#include "tarn/autograd/functions.h"

namespace tarn::apps {
namespace {

// [a, b, c] of anything that `write` turns into text.
template <class Range, class Write>
std::string json_list(const Range& values, Write write) {
  std::string out;
  for (const auto& value : values) out += (out.empty() ? "" : ", ") + write(value);
  return "[" + out + "]";
}

// The shortest text that reads back as the same f32. NaN and infinity are not JSON.
std::string float_text(float value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

std::string vector_lines(const std::vector<Sentence>& sentences, const Tensor& vectors) {
  std::string out;
  for (size_t i = 0; i < sentences.size(); ++i) {
    const auto values = vectors[static_cast<int64_t>(i)].to_vector<float>();
    out += JsonObject()
               .add("text", sentences[i].text)
               .add("tokens", static_cast<int64_t>(sentences[i].ids.size()))
               .add_json("vector", json_list(values, float_text))
               .text() +
           "\n";
  }
  return out;
}

std::string token_lines(const std::vector<Sentence>& sentences, const data::WordPiece& words) {
  std::string out;
  for (const Sentence& s : sentences) {
    out += JsonObject()
               .add("text", s.text)
               .add_json("ids", json_list(s.ids, [](int32_t id) { return std::to_string(id); }))
               .add_json("tokens",
                         json_list(s.ids, [&](int32_t id) { return json_quote(words.token(id)); }))
               .text() +
           "\n";
  }
  return out;
}

std::string similarity_table(const std::vector<Sentence>& sentences, const Tensor& vectors) {
  const Tensor unit = vectors / clamp_min(norm(vectors, 2, {1}, true), 1e-12);
  const Tensor cosines = matmul(unit, unit.t());
  std::string out = "    ";
  for (size_t i = 0; i < sentences.size(); ++i) out += format(" %7zu", i + 1);
  out += "\n";
  for (size_t i = 0; i < sentences.size(); ++i) {
    out += format("%4zu", i + 1);
    for (const float c : cosines[static_cast<int64_t>(i)].to_vector<float>()) {
      out += format(" %7.4f", static_cast<double>(c));
    }
    out += "  " + sentences[i].text + "\n";
  }
  return out;
}

}  // namespace tarn::apps
