// print.h - vectors, tokens and likeness as text.
#pragma once

#include <string>
#include <vector>

#include "tarn/apps/bert/sentences.h"

namespace tarn::apps {

/// A line a sentence: {"text": ..., "tokens": how many, "vector": [...]}; the numbers read back as
/// the same f32.
std::string vector_lines(const std::vector<Sentence>& sentences, const Tensor& vectors);

/// A line a sentence: {"text": ..., "ids": [...], "tokens": [...]}.
std::string token_lines(const std::vector<Sentence>& sentences, const data::WordPiece& words);

/// A table of the cosines of all pairs, each row with its number and text.
std::string similarity_table(const std::vector<Sentence>& sentences, const Tensor& vectors);

}  // namespace tarn::apps
