// data_bpe_test.cpp - GPT-2's byte-pair encoding: splitting, merging, files, learning.
//
// With GPT-2's own files in the folder $TARN_GPT2_VOCAB (vocab.json, merges.txt) their published
// ids are checked too.
#include <cstdlib>

#include "temp_folder.h"
#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/data/bpe.h"

namespace {

using namespace tarn;
using namespace tarn::data;
using test::slurp;
using test::TempFolder;
using Ids = std::vector<int32_t>;
using Pieces = std::vector<std::string>;

Pieces split(std::string_view text) {
  Pieces pieces;
  split_gpt2(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(BpeSplit, a_word_takes_the_space_before_it) {
  EXPECT_EQ(split("Hello world"), (Pieces{"Hello", " world"}));
  EXPECT_EQ(split("hello  world"), (Pieces{"hello", " ", " world"}));
  EXPECT_EQ(split("trailing  "), (Pieces{"trailing", "  "}));
  EXPECT_EQ(split("a\n\nb\t c"), (Pieces{"a", "\n", "\n", "b", "\t", " c"}));
}

TEST(BpeSplit, contractions_stand_alone_in_lower_case_only) {
  EXPECT_EQ(split("I'll've don't CAN'T"),
            (Pieces{"I", "'ll", "'ve", " don", "'t", " CAN", "'", "T"}));
  EXPECT_EQ(split(" 's'"), (Pieces{" '", "s", "'"}));
}

TEST(BpeSplit, letters_numbers_and_others_part) {
  EXPECT_EQ(split("x2 3.14!?"), (Pieces{"x", "2", " 3", ".", "14", "!?"}));
  EXPECT_EQ(split("e\u0301"), (Pieces{"e", "\u0301"}));  // a mark is no letter
  EXPECT_EQ(split("\u00A0x\u2003y"), (Pieces{"\u00A0", "x", "\u2003", "y"}));
  EXPECT_EQ(split("\u2167\u00B2\u00BD"), (Pieces{"\u2167\u00B2\u00BD"}));  // numbers all
  EXPECT_EQ(split("a\xFF\xFE"), (Pieces{"a", "\xFF\xFE"}));
}

TEST(BpeSplit, white_space_at_the_end_stays_together) {
  EXPECT_EQ(split(""), Pieces{});
  EXPECT_EQ(split(" "), Pieces{" "});
  EXPECT_EQ(split("\n \n x"), (Pieces{"\n \n", " x"}));
  EXPECT_EQ(split("a \n"), (Pieces{"a", " \n"}));
}

// "ab" is learned before "bc": in "abc" it wins; in "bcb" there is only "bc".
const std::vector<Bpe::Merge> kMerges{{"a", "b"}, {"b", "c"}, {"ab", "ab"}, {"\u0120", "ab"}};

TEST(BpeMerge, what_was_learned_first_is_merged_first) {
  const Bpe bpe(kMerges);
  const auto letter = [](char c) { return c - '!'; };
  EXPECT_EQ(bpe.vocab_size(), 261);
  EXPECT_EQ(bpe.end_of_text(), 260);
  EXPECT_EQ(bpe.encode("abc"), (Ids{256, letter('c')}));
  EXPECT_EQ(bpe.encode("bcb"), (Ids{257, letter('b')}));
  EXPECT_EQ(bpe.encode("ababab"), (Ids{258, 256}));  // left to right
  EXPECT_EQ(bpe.encode(" ab"), (Ids{259}));
  EXPECT_EQ(bpe.decode(bpe.encode("abc \xFF")), "abc \xFF");
  EXPECT_EQ(bpe.piece(260), "<|endoftext|>");
}

TEST(BpeMerge, a_long_piece_takes_no_quadratic_time) {
  const Bpe bpe(kMerges);
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "ab";
  EXPECT_EQ(bpe.encode(text), Ids(100000, 258));
}

TEST(BpeMerge, a_merge_of_tokens_that_do_not_exist_is_refused) {
  using Merges = std::vector<Bpe::Merge>;
  const Merges unknown{{"ab", "c"}}, twice{{"a", "b"}, {"a", "b"}}, wide{{"a", "\u65E5"}};
  EXPECT_MESSAGE(ValueError, Bpe(unknown), "merge 0 joins 'ab' and 'c', but no merge before");
  EXPECT_MESSAGE(ValueError, Bpe(twice), "merge 1 makes 'ab', which is there");
  EXPECT_MESSAGE(ValueError, Bpe(wide), "is no token");
}

TEST(BpeFiles, saved_files_load_again) {
  const TempFolder folder;
  const Bpe bpe(kMerges);
  bpe.save(folder.str());
  EXPECT_EQ(slurp(folder / "merges.txt"), "#version: 0.2\na b\nb c\nab ab\n\u0120 ab\n");
  const auto again = Bpe::load(folder.str());
  EXPECT_EQ(again->vocab_size(), 261);
  EXPECT_EQ(again->end_of_text(), 260);
  EXPECT_EQ(again->encode("abc ab"), bpe.encode("abc ab"));
}

TEST(BpeFiles, what_is_missing_or_does_not_belong_together_is_named) {
  const TempFolder folder;
  EXPECT_MESSAGE(FileError, Bpe::load(folder / "none"), "bpe: no folder ");
  EXPECT_MESSAGE(FileError, Bpe::load(folder.str()), "must hold vocab.json and merges.txt");
  folder.write("merges.txt", "a b\n");
  for (const char* name : {"loop", "vocab.json"}) {
    std::filesystem::create_symlink(folder / name, folder / name);  // no more than missing
  }
  EXPECT_MESSAGE(FileError, Bpe::load(folder / "loop"), "bpe: no folder ");
  EXPECT_MESSAGE(FileError, Bpe::load(folder.str()), "must hold vocab.json and merges.txt");
  std::filesystem::remove(folder / "vocab.json");
  Bpe(kMerges).save(folder.str());
  folder.write("merges.txt", "a b c\n");
  EXPECT_MESSAGE(FileError, Bpe::load(folder.str()), "line 1 must be two tokens with a space");
  folder.write("merges.txt", "a b\nb c\nab ab\n\u0120 a\n");
  EXPECT_MESSAGE(FileError, Bpe::load(folder.str()), "token 259 is '\u0120ab' in ");
  folder.write("merges.txt", "x yz\n");
  EXPECT_MESSAGE(FileError, Bpe::load(folder.str()), "no merge before it makes 'yz' (in ");
  folder.write("vocab.json", "{\"a\": 0}");
  EXPECT_MESSAGE(FileError, Bpe::load(folder.str()), "the files are not of one vocabulary");
  folder.write("vocab.json", "{\"a\": 1}");
  EXPECT_MESSAGE(FileError, Bpe::load(folder.str()), "the ids must be 0 to 0, each once");
  folder.write("vocab.json", "[1]");
  EXPECT_MESSAGE(FileError, Bpe::load(folder.str()), "must be a JSON object of tokens and ids");
}

TEST(BpeLearning, the_commonest_pair_is_merged_first) {
  // "low" 3 times and "lot" once: "l o" occurs 4 times, then "lo w" and " lo", 3 each.
  const auto bpe = train_bpe("low low low lot", 260);
  EXPECT_EQ(bpe->merges()[0], (Bpe::Merge{"l", "o"}));
  EXPECT_EQ(bpe->vocab_size(), 260);
  EXPECT_EQ(bpe->decode(bpe->encode("slow lot")), "slow lot");
}

TEST(BpeLearning, pairs_that_overlap_are_counted_and_merged_from_the_left) {
  const auto bpe = train_bpe("aaaaa aaaaa", 400);
  EXPECT_EQ(bpe->merges()[0], (Bpe::Merge{"a", "a"}));
  // aa aa a: two pairs, equally common; "a" has the smaller id
  EXPECT_EQ(bpe->merges()[1], (Bpe::Merge{"aa", "a"}));
  EXPECT_EQ(bpe->merges()[2], (Bpe::Merge{"aa", "aaa"}));
  EXPECT_EQ(bpe->vocab_size(), 260);  // nothing more occurs twice
}

TEST(BpeLearning, a_vocabulary_below_the_bytes_is_refused) {
  EXPECT_MESSAGE(ValueError, train_bpe("a", 256), "257 tokens; got 256");
}

class Gpt2Vocabulary : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("TARN_GPT2_VOCAB");
    if (!folder) GTEST_SKIP() << "TARN_GPT2_VOCAB names no folder with vocab.json and merges.txt";
    bpe = Bpe::load(folder);
  }
  std::unique_ptr<Bpe> bpe;
};

// The ids of the published tokenizer.
TEST_F(Gpt2Vocabulary, texts_have_their_published_ids) {
  EXPECT_EQ(bpe->vocab_size(), 50257);
  EXPECT_EQ(bpe->end_of_text(), 50256);
  const std::pair<const char*, Ids> cases[] = {
      {"Hello world", {15496, 995}},
      {"Hello, world!", {15496, 11, 995, 0}},
      {"hello  world", {31373, 220, 995}},
      {"  leading", {220, 3756}},
      {"trailing  ", {9535, 4386, 220, 220}},
      {"a\n\nb\t c", {64, 198, 198, 65, 197, 269}},
      {"I'll've don't CAN'T", {40, 1183, 1053, 836, 470, 15628, 6, 51}},
      {"na\u00EFve caf\u00E9 \u65E5\u672C\u8A9E \U0001F642",
       {2616, 38776, 40304, 10545, 245, 98, 17312, 105, 45739, 252, 32485}},
      {"12345 3.14", {10163, 2231, 513, 13, 1415}},
      {"x=\"y\"; // z", {87, 2625, 88, 8172, 3373, 1976}},
      {"\r\n", {201, 198}},
      {"e\u0301", {68, 136, 223}},
      {"\u00A0x\u2003y", {1849, 87, 447, 225, 88}},
      {"\u2167\u00B2\u00BD", {158, 227, 100, 31185, 23141}},
  };
  for (const auto& [text, ids] : cases) {
    EXPECT_EQ(bpe->encode(text), ids) << text;
    EXPECT_EQ(bpe->decode(ids), text);
  }
}

TEST_F(Gpt2Vocabulary, tiny_shakespeare_has_its_published_length) {
  const char* path = std::getenv("TARN_TINY_SHAKESPEARE");
  if (!path) GTEST_SKIP() << "TARN_TINY_SHAKESPEARE names no file";
  const std::string text = slurp(path);
  const size_t cut = text.size() * 9 / 10;
  EXPECT_EQ(bpe->encode(std::string_view(text).substr(0, cut)).size(), 301966u);
  EXPECT_EQ(bpe->encode(std::string_view(text).substr(cut)).size(), 36059u);
}

}  // namespace
