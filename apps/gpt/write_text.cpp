// write_text.cpp - the loop that draws a token, and gives it to the model.
#include "tarn/apps/gpt/write_text.h"

#include <algorithm>
#include <utility>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/file.h"
#include "tarn/data/unicode.h"

namespace tarn::apps {
namespace {

// What a text may begin after.
int32_t opening(const data::Tokenizer& tokenizer) {
  if (const std::optional<int32_t> end = tokenizer.end_of_text()) return *end;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.piece(id) == "\n") return id;
  }
  return 0;
}

// ids[first..] as a batch of one.
Tensor tokens_from(const std::vector<int32_t>& ids, int64_t first, Device device) {
  const std::vector<int64_t> wide(ids.begin() + first, ids.end());
  return from_vector(wide, {1, static_cast<int64_t>(wide.size())}, device);
}

}  // namespace

void write_tokens(nn::models::Gpt& gpt, std::vector<int32_t> ids, const TextOptions& options,
                  const std::function<bool(int32_t)>& f) {
  TARN_CHECK_AS(ValueError, !ids.empty(), "write_tokens: the prompt is empty");
  const nn::Module::EvalScope evaluation(gpt);
  const NoGradGuard no_grad;
  const int64_t block = gpt.options().block;
  const Device device = gpt.transformer.wte.weight.device();
  nn::KeyValueCache cache = gpt.make_cache();
  int64_t first = 0;  // where the window begins
  for (int64_t i = 0; i < options.count; ++i) {
    const auto length = static_cast<int64_t>(ids.size());
    if (length - first > block) {
      first = length - (i == 0 ? block : (block + 1) / 2);
      cache.clear();
    }
    if (!options.kv_cache) cache.clear();
    const Tensor unread = tokens_from(ids, first + cache.length(), device);
    const Tensor next = nn::sample_tokens(gpt.next_logits(unread, cache), options.sampling);
    ids.push_back(static_cast<int32_t>(next.item<int64_t>()));
    if (!f(ids.back())) return;
  }
}

TextOptions text_options(const GptSettings& s, int64_t count, Generator& generator) {
  return {.count = count,
          .sampling = {.temperature = s.temperature,
                       .top_k = s.top_k,
                       .top_p = s.top_p,
                       .generator = &generator},
          .kv_cache = s.kv_cache};
}

std::vector<int32_t> prompt_ids(const std::string& start, const data::Tokenizer& tokenizer) {
  const std::string text =
      start.starts_with("FILE:") ? read_file("--start", start.substr(5)) : start;
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (ids.empty()) ids.push_back(opening(tokenizer));
  return ids;
}

std::string shown_text(std::string_view text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const data::CodePoint c = data::code_point_at(text, at);
    const bool control = (c.value < 0x20 && c.value != '\n' && c.value != '\t') ||
                         (c.value >= 0x7F && c.value < 0xA0);
    if (!c.valid || (control && c.value != '\r')) {
      data::append_utf8(shown, 0xFFFD);
    } else if (!control) {
      shown += text.substr(at, static_cast<size_t>(c.bytes));
    }
    at += static_cast<size_t>(c.bytes);
  }
  return shown;
}

std::string ShownText::next(std::string_view piece) {
  pending_ += piece;
  size_t end = pending_.size();  // of the last character whose bytes are all there
  for (size_t back = 1; back <= std::min<size_t>(3, pending_.size()); ++back) {
    const auto byte = static_cast<uint8_t>(pending_[pending_.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // goes on with a character that began before it
    const size_t bytes = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    if (bytes > back) end -= back;
    break;
  }
  std::string shown = shown_text(std::string_view(pending_).substr(0, end));
  pending_.erase(0, end);
  return shown;
}

std::string ShownText::rest() {
  return shown_text(std::exchange(pending_, ""));
}

}  // namespace tarn::apps
