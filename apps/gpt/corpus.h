// corpus.h - the text a model learns from: tokens to train on, tokens to test on, the tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "tarn/apps/gpt/settings.h"
#include "tarn/data/tokenizer.h"
#include "tarn/data/tokens.h"

namespace tarn::apps {

struct Corpus {
  std::string name;                            ///< for the run's folder
  std::shared_ptr<data::Tokenizer> tokenizer;  ///< null: tokens of an unknown vocabulary
  data::Tokens train, val;
  int64_t vocab = 0;     ///< of the tokenizer; without one, the largest id and one
  bool guessed = false;  ///< nothing said how to read the text, so its characters are the tokens
};

/// What --data, --val-data, --val-fraction and --tokenizer ask for. A run that goes on passes its
/// tokenizer. Throws FileError if something is missing or damaged.
Corpus open_corpus(const GptSettings& s, std::shared_ptr<data::Tokenizer> tokenizer = nullptr);

/// Throws ValueError if a part is too short for one window of `block` tokens.
void check_length(const Corpus& corpus, int64_t block);

/// Throws ValueError where the tokens are guessed and are not as many as the model knows: those it
/// was trained on are others.
void check_guess(const Corpus& corpus, int64_t known);

/// The tokenizer in this file; null where there is none, or one of Hugging Face's (with a note).
std::shared_ptr<data::Tokenizer> tokenizer_in(const std::filesystem::path& file);

/// The tokenizer that --tokenizer names, where no text is needed for it; else null.
std::shared_ptr<data::Tokenizer> named_tokenizer(const std::string& name);

}  // namespace tarn::apps
