// wordpiece.h - BERT's tokenizer (uncased): folded words, cut greedily into known pieces.
//
//   const auto bert = WordPiece::load("vocab.txt");
//   bert->encode_sentence("Hello, world!", 256)   ->   [CLS] hello , world ! [SEP]
//
// Text is lower-cased and loses accents and control characters; white space, punctuation and CJK
// characters separate words; a word is cut into the longest known pieces from the left, those after
// the first written "##piece". A word of over 100 characters, or with a part that is no piece, is
// [UNK]. Source: Devlin et al. 2018, arXiv:1810.04805.
#pragma once

#include "tarn/data/tokenizer.h"

namespace tarn::data {

class WordPiece final : public Tokenizer {
 public:
  /// From vocab.txt: a token a line, ids from 0. Throws FileError if it is missing, has a token
  /// twice or lacks one of [PAD], [UNK], [CLS], [SEP].
  static std::unique_ptr<WordPiece> load(const std::string& vocab_txt);
  /// Throws ValueError likewise.
  explicit WordPiece(std::vector<std::string> tokens);

  std::string kind() const override { return "wordpiece"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  /// Without [CLS] and [SEP].
  std::vector<int32_t> encode(std::string_view text) const override;
  /// With them, cut to at most max_length ids.
  std::vector<int32_t> encode_sentence(std::string_view text, int64_t max_length) const;
  /// A word with a space before it; what follows "##" without. Text comes back folded.
  std::string piece(int32_t id) const override;
  std::string json() const override;

  /// The id of a token. Throws ValueError if the vocabulary lacks it.
  int32_t id(const std::string& token) const;
  int32_t padding() const { return padding_; }

 private:
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  int32_t padding_ = 0, unknown_ = 0, first_ = 0, last_ = 0;  // [PAD] [UNK] [CLS] [SEP]
};

/// The words BERT sees: folded, separated by white space, punctuation and CJK characters.
std::vector<std::string> split_bert(std::string_view text);

}  // namespace tarn::data
