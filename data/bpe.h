// bpe.h - byte-level byte-pair encoding as GPT-2 does it, exactly.
//
//   const auto bpe = Bpe::load("vocab.json", "merges.txt");
//   bpe->encode("Hello world") == {15496, 995}
//
// A text is cut into pieces (words with the space before them, numbers, runs of other characters,
// white space: split_gpt2); inside a piece, the pair of neighbouring tokens that was learned first
// is merged until no pair is left.
// Source: Radford et al. 2019 (GPT-2), and its published encoder's behaviour.
#pragma once

#include <functional>
#include <utility>

#include "tarn/data/tokenizer.h"

namespace tarn::data {

/// Calls f with every piece of a text, in order; the pieces joined are the text. The rules are
/// those of the regular expression
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// A byte that begins no UTF-8 character counts as "other".
void split_gpt2(std::string_view text, const std::function<void(std::string_view)>& f);

class Bpe final : public Tokenizer {
 public:
  /// Two tokens that become one, written as in merges.txt (every byte a printable character).
  using Merge = std::pair<std::string, std::string>;

  /// From GPT-2's two files (also named encoder.json and vocab.bpe). Entries of the vocabulary that
  /// are neither bytes nor merges are special tokens. Throws FileError if a file is missing or
  /// damaged, or the two do not belong together.
  static std::unique_ptr<Bpe> load(const std::string& vocab_json, const std::string& merges_txt);
  /// From vocab.json and merges.txt, or encoder.json and vocab.bpe, in a folder.
  static std::unique_ptr<Bpe> load(const std::string& folder);
  /// Ids: the 256 bytes in GPT-2's order, then the merges, then the specials. Throws ValueError on
  /// a merge of tokens that do not exist yet.
  explicit Bpe(const std::vector<Merge>& merges,
               const std::vector<std::string>& specials = {"<|endoftext|>"});

  std::string kind() const override { return "bpe"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  /// Special tokens in the text are text like any other.
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string piece(int32_t id) const override;
  std::optional<int32_t> end_of_text() const override { return end_of_text_; }
  std::string json() const override;

  const std::vector<Merge>& merges() const { return merges_; }
  /// Writes vocab.json and merges.txt into a folder that exists.
  void save(const std::string& folder) const;

 private:
  struct Joined {
    int32_t rank, id;  // when the pair was learned, and what it becomes
  };
  struct PairHash {
    size_t operator()(uint64_t pair) const { return pair * 0x9E3779B97F4A7C15u >> 20; }
  };

  const Joined* find(int32_t left, int32_t right) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;

  std::vector<Merge> merges_;
  std::vector<std::string> specials_;
  std::vector<std::string> pieces_;  // bytes of every token
  int32_t byte_ids_[256] = {};
  std::unordered_map<uint64_t, Joined, PairHash> joined_;
  std::optional<int32_t> end_of_text_;
};

/// Learns merges from a text: the commonest pair of neighbours inside pieces becomes a token, until
/// the vocabulary (256 bytes, merges, "<|endoftext|>") has this size or no pair occurs twice. Of
/// equally common pairs the one with the smaller ids is taken. Throws ValueError if vocab_size is
/// below 257.
/// Source: Sennrich et al. 2016, arXiv:1508.07909.
std::unique_ptr<Bpe> train_bpe(std::string_view text, int64_t vocab_size);

}  // namespace tarn::data
