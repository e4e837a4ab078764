// data_tokenizer_test.cpp - bytes, characters, WordPiece, and characters' classes.
#include <functional>

#include "temp_folder.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tarn/core/error.h"
#include "tarn/data/bpe.h"
#include "tarn/data/tokenizer.h"
#include "tarn/data/unicode.h"
#include "tarn/data/wordpiece.h"

namespace {

using namespace tarn;
using namespace tarn::data;
using test::TempFolder;
using Ids = std::vector<int32_t>;

TEST(Unicode, broken_utf8_is_taken_byte_by_byte) {
  for (const std::string text :
       {"\xC3", "\x80", "\xC0\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xE2\x82"}) {
    EXPECT_FALSE(code_point_at(text, 0).valid);
    EXPECT_EQ(code_point_at(text, 0).bytes, 1);
  }
  const CodePoint smile = code_point_at("\xF0\x9F\x99\x82", 0);
  EXPECT_EQ(smile.value, 0x1F642u);
  EXPECT_EQ(smile.bytes, 4);
}

TEST(Unicode, characters_have_their_classes) {
  EXPECT_TRUE(is_letter('z') && is_letter(0xE9) && is_letter(0x65E5) && !is_letter(0x301));
  EXPECT_TRUE(is_number('7') && is_number(0x2167) && is_number(0xBD) && !is_number('x'));
  EXPECT_TRUE(is_space(0x85) && is_space(0xA0) && is_space(0x3000) && !is_space(0x200B));
  EXPECT_TRUE(is_punctuation('$') && is_punctuation(0x3002) && !is_punctuation('a'));
  EXPECT_TRUE(is_control(0x200B) && is_control(0) && !is_control('a') && !is_control(0x378));
}

TEST(Unicode, folding_lowers_decomposes_and_drops_accents) {
  std::string text;
  for (const uint32_t c : {0xC9u, 0x130u, 0x1E9Eu, 0x1FA6u, 0x301u, 0x2126u})
    append_folded(text, c);
  EXPECT_EQ(text, "ei\u00DF\u03C9\u03C9");
  text.clear();
  append_folded(text, 0xD55C);  // a Hangul syllable of three parts
  EXPECT_EQ(text, "\u1112\u1161\u11AB");
}

TEST(Tokenizers, bytes_round_trip) {
  const ByteTokenizer bytes;
  const std::string text("a\0\xFF\n", 4);
  EXPECT_EQ(bytes.encode(text), (Ids{97, 0, 255, 10}));
  EXPECT_EQ(bytes.decode(bytes.encode(text)), text);
  EXPECT_MESSAGE(IndexError, bytes.piece(256),
                 "byte tokenizer: no token 256 in a vocabulary of 256");
}

TEST(Tokenizers, characters_are_numbered_in_the_order_of_code_points) {
  const auto chars = CharTokenizer::of("hello w\u00F6rld\n");
  EXPECT_EQ(chars->vocab_size(), 10);
  EXPECT_EQ(chars->piece(0), "\n");
  EXPECT_EQ(chars->piece(9), "\u00F6");
  EXPECT_EQ(chars->decode(chars->encode("w\u00F6 hell")), "w\u00F6 hell");
  EXPECT_MESSAGE(ValueError, chars->encode("he?"),
                 "'?' at offset 2 is not among the 10 characters");
}

TEST(Tokenizers, a_text_that_is_not_utf8_has_no_characters) {
  EXPECT_MESSAGE(ValueError, CharTokenizer::of("ab\xFF"), "not UTF-8 (byte 255 at offset 2)");
  EXPECT_MESSAGE(ValueError, CharTokenizer::of(""), "the text is empty");
  EXPECT_MESSAGE(ValueError, CharTokenizer({"a", "a"}), "'a' is there twice");
  EXPECT_MESSAGE(ValueError, CharTokenizer({"ab"}), "entry 0 is not one character: 'ab'");
}

TEST(Tokenizers, what_json_says_makes_the_tokenizer_again) {
  const TempFolder folder;
  const ByteTokenizer bytes;
  const auto chars = CharTokenizer::of("abc \u00E9");
  const auto bpe = train_bpe("low lower lowest low low", 262);
  const WordPiece words({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "c"});
  for (const Tokenizer* t :
       {static_cast<const Tokenizer*>(&bytes), static_cast<const Tokenizer*>(chars.get()),
        static_cast<const Tokenizer*>(bpe.get()), static_cast<const Tokenizer*>(&words)}) {
    const auto again = load_tokenizer(folder.write("t.json", t->json()));
    EXPECT_EQ(again->kind(), t->kind());
    EXPECT_EQ(again->vocab_size(), t->vocab_size());
    EXPECT_EQ(again->encode("ab c"), t->encode("ab c"));
  }
}

TEST(Tokenizers, a_bad_vocabulary_file_is_refused_by_name) {
  const TempFolder folder;
  EXPECT_MESSAGE(FileError, load_tokenizer(folder / "none.json"), "cannot open");
  EXPECT_MESSAGE(FileError, load_tokenizer(folder.write("a.json", "{")), "a.json is damaged");
  EXPECT_MESSAGE(FileError, load_tokenizer(folder.write("b.json", R"({"kind": "x"})")),
                 "b.json is of the kind 'x'; this version knows byte, char, bpe and wordpiece");
  EXPECT_MESSAGE(FileError, load_tokenizer(folder.write("c.json", R"({"itos": ["a", "a"]})")),
                 "c.json is damaged: char tokenizer: 'a' is there twice");
  const std::string theirs = folder.write("d.json", R"({"model": {"type": "BPE"}})");
  EXPECT_MESSAGE(FileError, load_tokenizer(theirs),
                 "d.json is Hugging Face's; pass the folder with vocab.json and merges.txt");
  EXPECT_TRUE(is_huggingface_tokenizer(theirs));
  for (const char* own : {"a.json", "b.json", "c.json"}) {
    EXPECT_FALSE(is_huggingface_tokenizer(folder / own)) << own;
  }
}

TEST(WordPieces, words_are_folded_and_cut_at_punctuation_and_ideographs) {
  EXPECT_EQ(split_bert("H\u00C9LLO, wor\u200Bld!\t\u65E5\u672C x"),
            (std::vector<std::string>{"hello", ",", "world", "!", "\u65E5", "\u672C", "x"}));
  EXPECT_EQ(split_bert("a\vb\fc\u0085d e\u2028f\rg\u0378"),  // only some controls are spaces
            (std::vector<std::string>{"abcd", "e", "f", "g\u0378"}));
  EXPECT_EQ(split_bert("H\u00C9llo W", false), (std::vector<std::string>{"H\u00C9llo", "W"}));
}

TEST(WordPieces, special_tokens_may_be_named_in_a_text) {
  const WordPiece bert({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "[", "]", "mask", "[MASK]"});
  EXPECT_EQ(bert.encode("a[MASK]a [SEP][CLS]"), (Ids{4, 8, 4, 3, 2}));
  EXPECT_EQ(bert.encode("[mask][MASK"), (Ids{5, 7, 6, 5, 7}));
  const WordPiece without({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[", "]", "mask"});
  EXPECT_EQ(without.encode("[MASK]"), (Ids{4, 6, 5}));
}

TEST(WordPieces, a_cased_vocabulary_keeps_capitals) {
  const TempFolder folder;
  const WordPiece cased({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "A", "a", "\u00C9"}, false);
  EXPECT_EQ(cased.encode("A a \u00C9 \u00E9"), (Ids{4, 5, 6, 1}));
  EXPECT_EQ(load_tokenizer(folder.write("t.json", cased.json()))->encode("A a"), (Ids{4, 5}));
  const std::string vocab = folder.write("v.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nA\na\n");
  EXPECT_EQ(WordPiece::load(vocab, false)->encode("A a"), (Ids{4, 5}));
  EXPECT_EQ(WordPiece::load(vocab)->encode("A a"), (Ids{5, 5}));
}

/// A tokenizer.json as Hugging Face's library writes it for a BERT, changed by `change`.
std::string tokenizer_json(const std::function<void(nlohmann::json&)>& change = {}) {
  auto j = nlohmann::json::parse(R"({
    "version": "1.0", "truncation": {"max_length": 128}, "padding": null,
    "added_tokens": [],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                   "strip_accents": null, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
      "pair": [],
      "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                         "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100,
              "vocab": {"[PAD]": 0, "[UNK]": 2, "[CLS]": 1, "[SEP]": 3, "A": 4, "a": 5}}})");
  for (const auto& [name, id] : {std::pair("[PAD]", 0), std::pair("[CLS]", 1),
                                 std::pair("[UNK]", 2), std::pair("[SEP]", 3)}) {
    nlohmann::json token{{"id", id}, {"content", name}, {"special", true}};
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) token[flag] = false;
    j["added_tokens"].push_back(token);
  }
  if (change) change(j);
  return j.dump();
}

TEST(WordPieces, hugging_faces_tokenizer_json_is_read) {
  const TempFolder folder;
  const auto load = [&](const std::string& json) {
    return WordPiece::load(folder.write("tokenizer.json", json));
  };
  EXPECT_EQ(load(tokenizer_json())->encode_sentence("A ?", 9), (Ids{1, 5, 2, 3}));
  EXPECT_TRUE(load(tokenizer_json())->lowercase());
  const auto cased = [](auto& j) { j["normalizer"]["lowercase"] = false; };
  EXPECT_FALSE(load(tokenizer_json(cased))->lowercase());
  const auto older = [](auto& j) {
    j["model"].erase("type");
    j["normalizer"]["strip_accents"] = true;
    j["post_processor"] = {{"type", "BertProcessing"}};
    j["post_processor"]["cls"] = nlohmann::json::array({"[CLS]", 1});
    j["post_processor"]["sep"] = nlohmann::json::array({"[SEP]", 3});
  };
  EXPECT_EQ(load(tokenizer_json(older))->encode("A"), (Ids{5}));
  EXPECT_EQ(load(tokenizer_json([](auto& j) { j["post_processor"] = nullptr; }))->vocab_size(), 6);
  EXPECT_MESSAGE(FileError, load("{"), "tokenizer.json is no tokenizer.json: ");
  EXPECT_MESSAGE(FileError, load("{}"), "tokenizer.json is no tokenizer.json: ");
  const auto gap = [](auto& j) { j["model"]["vocab"] = {{"a", 0}, {"b", 2}}; };
  EXPECT_MESSAGE(FileError, load(tokenizer_json(gap)),
                 "the ids must be 0 to 1, each once; 'b' has 2");
  const auto bare = [](auto& j) {
    j["model"]["vocab"] = {{"a", 0}};
    j["added_tokens"].clear();
  };
  EXPECT_MESSAGE(FileError, load(tokenizer_json(bare)), "the vocabulary lacks [CLS] or [SEP]");
  EXPECT_MESSAGE(FileError, load(tokenizer_json([&](auto& j) {
                   bare(j);
                   j["post_processor"] = nullptr;
                 })),
                 "lacks [PAD] (in ");
}

TEST(WordPieces, a_setting_that_would_give_other_ids_is_refused_by_name) {
  const TempFolder folder;
  using nlohmann::json;
  const auto refuses = [&](const std::string& pointer, const json& value, const std::string& why) {
    const std::string path = folder.write(
        "t.json", tokenizer_json([&](json& j) { j[json::json_pointer(pointer)] = value; }));
    EXPECT_MESSAGE(FileError, WordPiece::load(path), "wordpiece: " + path + ": " + why);
  };
  refuses("/model/type", "BPE", "model is of the type BPE, not WordPiece");
  refuses("/model/unk_token", "<unk>", "model.unk_token must be \"[UNK]\", the only way");
  refuses("/model/continuing_subword_prefix", "@@", "model.continuing_subword_prefix must be \"##");
  refuses("/model/max_input_chars_per_word", 200,
          "model.max_input_chars_per_word must be 100, the only way of this tokenizer; got 200");
  refuses("/model/dropout", 0.1, "model.dropout is no setting that this version knows");
  refuses("/normalizer", nullptr, "normalizer is of the type null, not BertNormalizer");
  refuses("/normalizer/type", "Sequence", "normalizer is of the type Sequence, not");
  refuses("/normalizer/clean_text", false, "normalizer.clean_text must be true");
  refuses("/normalizer/handle_chinese_chars", false,
          "normalizer.handle_chinese_chars must be true");
  refuses(
      "/normalizer/strip_accents", false,
      "normalizer.strip_accents must be null or true, the only way of this tokenizer; got false");
  refuses("/pre_tokenizer", nullptr, "pre_tokenizer is of the type null, not BertPreTokenizer");
  refuses("/pre_tokenizer/type", "Whitespace", "pre_tokenizer is of the type Whitespace");
  refuses("/post_processor/type", "RobertaProcessing",
          "post_processor is of the type RobertaProcessing, not TemplateProcessing");
  refuses("/post_processor/single", json::array(), "post_processor.single must be [CLS] A [SEP]");
  refuses("/post_processor/special_tokens/[SEP]/ids/0", 4,
          "post_processor.special_tokens gives [SEP] the ids [4]; the vocabulary 3");
  refuses("/post_processor", {{"type", "BertProcessing"}, {"cls", 1}},
          "post_processor.cls must be [\"[CLS]\",1]");
  refuses("/added_tokens", json::array(), "added_tokens lacks '[PAD]'");
  refuses("/added_tokens/0/id", 1, "added_tokens has '[PAD]' with the id 1; this tokenizer takes");
  refuses("/added_tokens/0/content", "<s>", "added_tokens has '<s>' with the id 0");
  refuses("/added_tokens/3/lstrip", true, "added_tokens: lstrip of '[SEP]' must be false");
}

TEST(WordPieces, the_longest_piece_from_the_left_is_taken) {
  const WordPiece bert({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "##a", "!"});
  EXPECT_EQ(bert.encode("Unaffable!"), (Ids{4, 5, 6, 8}));
  EXPECT_EQ(bert.encode("unaffx un"), (Ids{1, 4}));  // one unknown part: the word is unknown
  EXPECT_EQ(bert.encode("un" + std::string(98, 'a')).size(), 99u);
  EXPECT_EQ(bert.encode("un" + std::string(99, 'a')), (Ids{1}));  // over 100 characters
  EXPECT_EQ(bert.encode_sentence("unaffable un", 4), (Ids{2, 4, 5, 3}));
  EXPECT_EQ(bert.decode(Ids{4, 5, 6, 8}), " unaffable !");
}

TEST(WordPieces, a_vocabulary_without_the_special_tokens_is_refused) {
  const TempFolder folder;
  EXPECT_MESSAGE(FileError, WordPiece::load(folder.write("v.txt", "[PAD]\n[UNK]\n[CLS]\n")),
                 "the vocabulary lacks [SEP] (in ");
  EXPECT_MESSAGE(FileError, WordPiece::load(folder.write("w.txt", "a\na\n")),
                 "the token 'a' is in the vocabulary twice");
  const WordPiece bert({"[PAD]", "[UNK]", "[CLS]", "[SEP]"});
  EXPECT_MESSAGE(ValueError, bert.encode_sentence("a", 1), "needs room for [CLS] and [SEP]");
}

}  // namespace
