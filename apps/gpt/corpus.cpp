// corpus.cpp - opening texts and token files.
#include "tarn/apps/gpt/corpus.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "tarn/apps/gpt/king_james.h"
#include "tarn/core/error.h"
#include "tarn/core/file.h"
#include "tarn/data/bpe.h"
#include "tarn/data/token_dataset.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;

bool is_token_file(const fs::path& path) {
  return path.extension() == ".bin";
}

std::string read_text(const std::string& data) {
  if (data == "king-james") return king_james_text();
  const std::string text = read_file("data", data);
  TARN_CHECK_AS(FileError, !text.empty(), "data: ", data, " is empty");
  return text;
}

// "bpe:1000" gives 1000.
int64_t bpe_size(const std::string& tokenizer) {
  const std::string number = tokenizer.substr(4);
  int64_t size = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), size);
  if (error != std::errc() || end != number.data() + number.size()) {
    throw UsageError("--tokenizer bpe:N wants a number of tokens; got " + tokenizer);
  }
  return size;
}

std::shared_ptr<data::Tokenizer> make_tokenizer(const std::string& name, std::string_view text) {
  if (name == "auto" || name == "char") return data::CharTokenizer::of(text);
  if (name.starts_with("bpe:")) return data::train_bpe(text, bpe_size(name));
  return named_tokenizer(name);
}

// nanoGPT's character data keeps its vocabulary beside the tokens; so do runs of this program.
std::shared_ptr<data::Tokenizer> tokenizer_beside(const fs::path& tokens) {
  for (const char* name : {"meta.json", "tokenizer.json"}) {
    if (auto tokenizer = tokenizer_in(tokens.parent_path() / name)) return tokenizer;
  }
  return nullptr;
}

int64_t largest_id(const data::Tokens& tokens) {
  int64_t largest = 0;
  for (int64_t i = 0; i < tokens.size(); ++i) largest = std::max(largest, tokens[i]);
  return largest;
}

// The part before the last --val-fraction, and that.
void split(Corpus& c, const data::Tokens& all, double val_fraction) {
  const auto cut = static_cast<int64_t>((1 - val_fraction) * static_cast<double>(all.size()));
  c.train = all.slice(0, cut);
  c.val = all.slice(cut, all.size() - cut);
}

void open_tokens(Corpus& c, const GptSettings& s, const fs::path& path) {
  const data::Tokens all = data::Tokens::open(path.string());
  if (!c.tokenizer) {
    c.tokenizer = s.tokenizer == "auto" ? tokenizer_beside(path) : named_tokenizer(s.tokenizer);
  }
  TARN_CHECK_AS(FileError, c.tokenizer || s.tokenizer == "auto", "--tokenizer ", s.tokenizer,
                " needs a text, and --data ", s.data, " holds tokens; pass the tokenizer that ",
                "made them");
  if (s.val_data.empty()) {
    split(c, all, s.val_fraction);
  } else if (!is_token_file(s.val_data)) {
    TARN_CHECK_AS(FileError, c.tokenizer, "--val-data ", s.val_data, " is a text, and --data ",
                  s.data, " holds tokens; pass the tokenizer that made them, or tokens for both");
    c.train = all;
    c.val = data::Tokens(c.tokenizer->encode(read_text(s.val_data)), s.val_data);
  } else {
    c.train = all;
    c.val = data::Tokens::open(s.val_data);
  }
}

// Both parts of a text; the vocabulary is that of the whole, as in nanoGPT's character data.
void open_text(Corpus& c, const GptSettings& s) {
  if (!s.val_data.empty() && is_token_file(s.val_data)) {
    throw UsageError("--val-data " + s.val_data + " holds tokens, and --data " + s.data +
                     " is a text; pass a text, or tokens for both");
  }
  const std::string text = read_text(s.data);
  const std::string val = s.val_data.empty() ? "" : read_text(s.val_data);
  if (!c.tokenizer) {
    c.tokenizer = make_tokenizer(s.tokenizer, text + val);
    c.guessed = s.tokenizer == "auto";
  }
  if (!s.val_data.empty()) {
    c.train = data::Tokens(c.tokenizer->encode(text), s.data);
    c.val = data::Tokens(c.tokenizer->encode(val), s.val_data);
    return;
  }
  // Cut as text, at a place where a character begins: no token crosses from one part to the other.
  auto cut = static_cast<size_t>((1 - s.val_fraction) * static_cast<double>(text.size()));
  while (cut < text.size() && (static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) ++cut;
  const std::string_view all = text;
  c.train = data::Tokens(c.tokenizer->encode(all.substr(0, cut)), s.data + " (training part)");
  c.val = data::Tokens(c.tokenizer->encode(all.substr(cut)), s.data + " (test part)");
}

// The last part of a path; that of a folder may end in a slash.
std::string stem_of(const fs::path& path) {
  return (path.has_filename() ? path : path.parent_path()).stem().string();
}

}  // namespace

void check_length(const Corpus& corpus, int64_t block) {
  for (const data::Tokens& part : {corpus.train, corpus.val}) {
    data::TokenDataset(part, {.block = block});  // its constructor checks
  }
}

void check_guess(const Corpus& corpus, int64_t known) {
  TARN_CHECK_AS(ValueError, !corpus.guessed || corpus.vocab == known,
                "no tokenizer for this model: it knows ", known, " tokens, and ", corpus.name,
                " has ", corpus.vocab, " different characters; pass --tokenizer with the folder ",
                "of GPT-2's vocab.json and merges.txt, byte, or a tokenizer.json");
}

std::shared_ptr<data::Tokenizer> tokenizer_in(const fs::path& file) {
  const std::string path = file.string();
  if (!is_there(path)) return nullptr;
  if (!data::is_huggingface_tokenizer(path)) return data::load_tokenizer(path);
  std::fprintf(
      stderr,
      "note: %s is Hugging Face's and not read; --tokenizer takes a folder with vocab.json "
      "and merges.txt\n",
      path.c_str());
  return nullptr;
}

std::shared_ptr<data::Tokenizer> named_tokenizer(const std::string& name) {
  if (name == "byte") return std::make_shared<data::ByteTokenizer>();
  if (name == "auto" || name == "char" || name.starts_with("bpe:")) return nullptr;
  TARN_CHECK_AS(FileError, is_there(name), "--tokenizer ", name,
                ": no such file or folder; it is char, byte, bpe:N, a folder with vocab.json and "
                "merges.txt, or a tokenizer.json");
  if (is_folder(name)) return data::Bpe::load(name);
  return data::load_tokenizer(name);
}

Corpus open_corpus(const GptSettings& s, std::shared_ptr<data::Tokenizer> tokenizer) {
  Corpus c;
  c.tokenizer = std::move(tokenizer);
  const fs::path path = s.data;
  c.name = s.data == "king-james" ? s.data : stem_of(path);
  if (s.data != "king-james") {
    std::error_code error;
    const bool there = fs::exists(s.data, error);
    TARN_CHECK_AS(FileError, !error, "--data ", s.data, ": ", error.message());
    TARN_CHECK_AS(FileError, there, "--data ", s.data,
                  ": no such file or folder; pass king-james, a text file, token files or a folder "
                  "with train.bin and val.bin");
  }
  if (is_folder(s.data)) {
    GptSettings files = s;
    if (files.val_data.empty()) files.val_data = (path / "val.bin").string();
    open_tokens(c, files, path / "train.bin");
  } else if (is_token_file(path)) {
    open_tokens(c, s, path);
  } else {
    open_text(c, s);
  }
  c.vocab = c.tokenizer ? c.tokenizer->vocab_size()
                        : std::max(largest_id(c.train), largest_id(c.val)) + 1;
  return c;
}

}  // namespace tarn::apps
