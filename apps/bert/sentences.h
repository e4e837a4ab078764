// sentences.h - texts to tokens to vectors.
#pragma once

#include <string>
#include <vector>

#include "tarn/apps/bert/sentence_model.h"

namespace tarn::apps {

struct Sentence {
  std::string text;
  std::vector<int32_t> ids;  ///< with [CLS] and [SEP], cut to the model's length
  int64_t length = 0;        ///< ids before they were cut
};

/// The texts of the command line, else the lines of --input, else those of standard input. Throws
/// UsageError if that is a terminal.
std::vector<std::string> read_texts(const BertSettings& s);

std::vector<Sentence> tokenize(const SentenceModel& model, const std::vector<std::string>& texts);

/// "2 of 9 texts are longer than 256 tokens and were cut, the first: text 3 (412 tokens)"; "" if
/// none is.
std::string cut_note(const std::vector<Sentence>& sentences, int64_t max_length);

/// One vector a sentence: [N, size] f32 on the CPU, in their order. Sentences of like length go
/// through the model together, batch_size at a time.
Tensor sentence_vectors(SentenceModel& model, const std::vector<Sentence>& sentences,
                        int64_t batch_size);

}  // namespace tarn::apps
