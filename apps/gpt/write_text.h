// write_text.h - text from a model, token by token.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tarn/apps/gpt/settings.h"
#include "tarn/data/tokenizer.h"
#include "tarn/nn/generate.h"
#include "tarn/nn/models/gpt.h"

namespace tarn::apps {

struct TextOptions {
  int64_t count = 100;  ///< new tokens
  nn::SampleOptions sampling;
  bool kv_cache = true;  ///< false: the whole window goes through the model for every token
};

/// Goes on from `prompt`, which must not be empty; calls f with every new token, until it returns
/// false. Past the model's block, the window goes on with its last half. In evaluation mode,
/// unrecorded. With and without the cache the tokens are the same.
void write_tokens(nn::models::Gpt& gpt, std::vector<int32_t> prompt, const TextOptions& options,
                  const std::function<bool(int32_t)>& f);

/// The options that the flags ask for. The generator must outlive them.
TextOptions text_options(const GptSettings& s, int64_t count, Generator& generator);

/// The ids of a prompt, "FILE:path" for the content of a file. Where it is empty, what a text may
/// begin after: the end-of-text token, else a line feed, else token 0.
std::vector<int32_t> prompt_ids(const std::string& start, const data::Tokenizer& tokenizer);

/// The text as a terminal may show it: bytes that are no UTF-8, and control characters other than
/// line feeds and tabs, become U+FFFD; carriage returns go. A model of bytes that has learned
/// little writes such things, and some of them change how a terminal looks from then on.
std::string shown_text(std::string_view text);

/// The same of a text that comes in pieces, which may end within a character.
class ShownText {
 public:
  /// What can be shown now that `piece` has come.
  std::string next(std::string_view piece);
  /// What is left when no more comes.
  std::string rest();

 private:
  std::string pending_;
};

}  // namespace tarn::apps
