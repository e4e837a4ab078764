// sentence_model.h - a BERT with its tokenizer, from a folder as sentence-transformers publish it.
#pragma once

#include <memory>

#include "tarn/apps/bert/settings.h"
#include "tarn/data/wordpiece.h"
#include "tarn/nn/models/bert.h"

namespace tarn::apps {

struct SentenceModel {
  std::unique_ptr<data::WordPiece> words;
  std::unique_ptr<nn::models::Bert> bert;  ///< in evaluation mode, on --device
  nn::models::SentenceOptions options;
  int64_t max_length = 0;  ///< ids of a text, [CLS] and [SEP] among them
};

/// What the flags and the files beside the weights say. All of them may be missing but a vocabulary
/// and, without --heads, config.json. Throws FileError if one is missing or damaged or asks for
/// what tarn-bert does not have, ValueError that lists all differences if weights do not fit.
SentenceModel load_sentence_model(const BertSettings& s);

}  // namespace tarn::apps
