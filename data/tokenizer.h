// tokenizer.h - text to token ids and back: by byte or by character; bpe.h has GPT-2's.
//
//   const auto tokenizer = CharTokenizer::of(text);
//   const std::vector<int32_t> ids = tokenizer->encode("hello");
//   tokenizer->decode(ids) == "hello"
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tarn::data {

/// Thread safety: const methods may be called from any thread at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "byte", "char", "bpe" or "wordpiece".
  virtual std::string kind() const = 0;
  virtual int64_t vocab_size() const = 0;
  /// Throws ValueError on what the vocabulary has no token for.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// The bytes a token stands for. Throws IndexError if there is no such token.
  virtual std::string piece(int32_t id) const = 0;
  /// The pieces, one after the other.
  std::string decode(std::span<const int32_t> ids) const;
  /// The token that ends a document, if the vocabulary has one.
  virtual std::optional<int32_t> end_of_text() const { return std::nullopt; }
  /// All it needs to be made again, as JSON: what load_tokenizer() reads.
  virtual std::string json() const = 0;

 protected:
  /// Throws IndexError unless 0 <= id < vocab_size().
  void check_id(int32_t id) const;
};

/// Every byte is a token: 256 of them, no text it cannot take.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string kind() const override { return "byte"; }
  int64_t vocab_size() const override { return 256; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string piece(int32_t id) const override;
  std::string json() const override;
};

/// Every character (Unicode code point) of a text is a token, in the order of code points.
class CharTokenizer final : public Tokenizer {
 public:
  /// The characters that occur in a text. Throws ValueError if it is empty or not UTF-8.
  static std::unique_ptr<CharTokenizer> of(std::string_view text);
  /// These characters, each a string of one. Throws ValueError if one is there twice.
  explicit CharTokenizer(std::vector<std::string> chars);

  std::string kind() const override { return "char"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(chars_.size()); }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string piece(int32_t id) const override;
  std::string json() const override;

 private:
  std::vector<std::string> chars_;
  std::unordered_map<uint32_t, int32_t> ids_;  // by code point
};

/// A tokenizer from what json() wrote, or from nanoGPT's character vocabulary as JSON
/// ({"itos": ["\n", " ", ...]}). Throws FileError if the file is missing or damaged.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

/// True for a tokenizer.json as Hugging Face's library writes it, which load_tokenizer() does not
/// read. Throws FileError if the file cannot be read.
bool is_huggingface_tokenizer(const std::string& path);

}  // namespace tarn::data
