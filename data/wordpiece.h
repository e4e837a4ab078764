// wordpiece.h - BERT's tokenizer: folded words, cut greedily into known pieces.
//
//   const auto bert = WordPiece::load("vocab.txt");
//   bert->encode_sentence("Hello, world!", 256)   ->   [CLS] hello , world ! [SEP]
//
// Text loses control characters and, unless the model is a cased one, accents and capitals; white
// space, punctuation and CJK characters separate words; a word is cut into the longest known pieces
// from the left, those after the first written "##piece". A word of over 100 characters, or with a
// part that is no piece, is [UNK]. The ids are those of Hugging Face's tokenizers, which also take
// "[MASK]" and the like in a text for the token of that name. Of all code points 559 are treated
// otherwise: marks, punctuation and capitals which that library's older tables do not have yet.
// Source: Devlin et al. 2018, arXiv:1810.04805; github.com/huggingface/tokenizers.
#pragma once

#include "tarn/data/tokenizer.h"

namespace tarn::data {

class WordPiece final : public Tokenizer {
 public:
  /// Longer words are [UNK]; in characters.
  static constexpr int64_t kLongestWord = 100;
  /// The tokens that a text may name.
  static constexpr const char* kSpecials[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

  /// From vocab.txt (a token a line, ids from 0) or Hugging Face's tokenizer.json (a name that ends
  /// so; it also says whether capitals count, which else `lowercase` does). Throws FileError if it
  /// is missing, of another kind, has a token twice or lacks one of [PAD], [UNK], [CLS], [SEP], and
  /// names the setting of a tokenizer.json that would give other ids; truncation and padding are
  /// the caller's.
  static std::unique_ptr<WordPiece> load(const std::string& path, bool lowercase = true);
  /// Throws ValueError likewise.
  explicit WordPiece(std::vector<std::string> tokens, bool lowercase = true);

  std::string kind() const override { return "wordpiece"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  /// Without [CLS] and [SEP].
  std::vector<int32_t> encode(std::string_view text) const override;
  /// With them, cut to at most max_length ids.
  std::vector<int32_t> encode_sentence(std::string_view text, int64_t max_length) const;
  /// A word with a space before it; what follows "##" without. Text comes back folded.
  std::string piece(int32_t id) const override;
  std::string json() const override;

  /// A token as the vocabulary spells it. Throws IndexError if there is no such token.
  const std::string& token(int32_t id) const;
  /// The id of a token. Throws ValueError if the vocabulary lacks it.
  int32_t id(const std::string& token) const;
  int32_t padding() const { return padding_; }
  bool lowercase() const { return lowercase_; }

 private:
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::string> specials_;  // those a text may name
  bool lowercase_;
  int32_t padding_ = 0, unknown_ = 0, first_ = 0, last_ = 0;  // [PAD] [UNK] [CLS] [SEP]
};

/// The words BERT sees: folded (unless lowercase is false), separated by white space,
/// punctuation and CJK characters.
std::vector<std::string> split_bert(std::string_view text, bool lowercase = true);

}  // namespace tarn::data
