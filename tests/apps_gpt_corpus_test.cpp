// apps_gpt_corpus_test.cpp - tarn-gpt's flags and the texts it opens.
#include "temp_folder.h"
#include <gtest/gtest.h>

#include "tarn/apps/gpt/corpus.h"
#include "tarn/apps/gpt/king_james.h"
#include "tarn/apps/gpt/settings.h"
#include "tarn/core/error.h"

namespace {

using namespace tarn;
using namespace tarn::apps;
using test::TempFolder;

GptSettings parsed(const std::vector<std::string>& arguments) {
  GptSettings s;
  Options options("tarn-gpt", "");
  declare_flags(options, s);
  options.parse(arguments);
  apply_preset(options, s);
  check_settings(s);
  return s;
}

TEST(GptFlags, a_preset_fills_in_what_is_not_given) {
  const GptSettings s = parsed({"--model", "gpt2-medium", "--block-size=256"});
  EXPECT_EQ(s.n_layer, 24);
  EXPECT_EQ(s.n_head, 16);
  EXPECT_EQ(s.n_embd, 1024);
  EXPECT_EQ(s.block_size, 256);
  EXPECT_EQ(s.gradient_accumulation_steps, 40);
  EXPECT_EQ(s.beta2, 0.95);
}

TEST(GptFlags, nanogpt_spelling_is_understood) {
  const GptSettings s =
      parsed({"--batch_size=3", "--gradient_accumulation_steps=2", "--lr", "0.1"});
  EXPECT_EQ(s.batch_size, 3);
  EXPECT_EQ(s.gradient_accumulation_steps, 2);
  EXPECT_EQ(s.learning_rate, 0.1);
}

TEST(GptFlags, what_does_not_go_together_is_said) {
  EXPECT_MESSAGE(UsageError, parsed({"--n-embd", "10", "--n-head", "4"}), "a multiple of --n-head");
  EXPECT_MESSAGE(UsageError, parsed({"--sample"}), "--sample needs weights");
  EXPECT_MESSAGE(UsageError, parsed({"--eval-only"}), "--eval-only needs weights");
  EXPECT_MESSAGE(UsageError, parsed({"--init-from", "resume"}), "needs --out-dir RUN");
  EXPECT_MESSAGE(UsageError, parsed({"--init-from", "F", "--resume", "R"}), "pass one");
}

TEST(KingJames, references_are_taken_off_and_chapters_parted) {
  EXPECT_EQ(without_references("Ge1:1 In the beginning: so.\nGe1:2 And the earth\nGe2:1 Thus\n"
                               "not a verse\n"),
            "In the beginning: so.\nAnd the earth\n\nThus\n");
}

TEST(GptCorpus, a_text_is_cut_where_a_character_begins) {
  const TempFolder folder;
  GptSettings s;
  s.data = folder.write("t.txt", "aaaaaaaa\u00E9b");  // 90 % of 11 bytes: in the middle of the e
  const Corpus c = open_corpus(s);
  EXPECT_EQ(c.name, "t");
  EXPECT_EQ(c.vocab, 3);
  EXPECT_EQ(c.train.size(), 9);
  EXPECT_EQ(c.val.size(), 1);
}

TEST(GptCorpus, every_tokenizer_reads_a_text) {
  const TempFolder folder;
  GptSettings s;
  s.data = folder.write("t.txt", "low low low lower lowest low low low");
  s.val_data = folder.write("v.txt", "low");
  for (const auto& [name, vocab] :
       {std::pair<std::string, int64_t>{"char", 8}, {"byte", 256}, {"bpe:259", 259}}) {
    s.tokenizer = name;
    const Corpus c = open_corpus(s);
    EXPECT_EQ(c.vocab, vocab) << name;
    EXPECT_EQ(c.tokenizer->decode(std::vector<int32_t>{static_cast<int32_t>(c.val[0])})[0], 'l');
  }
}

TEST(GptCorpus, token_files_bring_their_vocabulary) {
  const TempFolder folder;
  data::save_nanogpt_tokens(folder / "train.bin", std::vector<int32_t>{0, 1, 2, 1});
  data::save_llmc_tokens(folder / "val.bin", std::vector<int32_t>{4, 1});
  GptSettings s;
  s.data = folder.str();
  EXPECT_EQ(open_corpus(s).vocab, 5);
  EXPECT_EQ(open_corpus(s).tokenizer, nullptr);
  const std::string name = open_corpus(s).name;
  EXPECT_FALSE(name.empty());
  for (const char* slash : {"/", "//"}) {
    s.data = folder.str() + slash;
    EXPECT_EQ(open_corpus(s).name, name);
  }
  folder.write("tokenizer.json", R"({"model": {"type": "BPE"}})");  // Hugging Face's
  EXPECT_EQ(open_corpus(s).tokenizer, nullptr);
  folder.write("meta.json", R"({"itos": ["a", "b", "c", "d", "e", "f"]})");
  EXPECT_EQ(open_corpus(s).vocab, 6);
  s.data = folder / "train.bin";
  s.val_fraction = 0.25;
  EXPECT_EQ(open_corpus(s).train.size(), 3);
}

TEST(GptCorpus, a_link_to_itself_is_told_apart) {
  const TempFolder folder;
  for (const char* name : {"loop", "meta.json"}) {
    std::filesystem::create_symlink(folder / name, folder / name);
  }
  GptSettings s;
  s.data = folder / "loop";
  EXPECT_MESSAGE(FileError, open_corpus(s), "loop: Too many levels of symbolic links");
  s.data = folder.write("t.txt", "some text");
  s.tokenizer = folder / "loop";
  EXPECT_MESSAGE(FileError, open_corpus(s), "loop: no such file or folder; it is char, byte");
  data::save_nanogpt_tokens(folder / "train.bin", std::vector<int32_t>{0, 1, 2, 1});
  s.data = folder / "train.bin";
  s.tokenizer = "auto";
  EXPECT_EQ(open_corpus(s).tokenizer, nullptr);
}

TEST(GptCorpus, what_is_missing_is_said) {
  const TempFolder folder;
  GptSettings s;
  s.data = folder / "none";
  EXPECT_MESSAGE(FileError, open_corpus(s), "none: no such file or folder; pass king-james");
  s.data = folder.write("empty.txt", "");
  EXPECT_MESSAGE(FileError, open_corpus(s), "empty.txt is empty");
  s.data = folder.write("t.txt", "some text");
  s.tokenizer = folder / "vocab";
  EXPECT_MESSAGE(FileError, open_corpus(s),
                 "vocab: no such file or folder; it is char, byte, bpe:N");
  s.tokenizer = folder.str();
  EXPECT_MESSAGE(FileError, open_corpus(s), "must hold vocab.json and merges.txt");
  s.tokenizer = "bpe:many";
  EXPECT_MESSAGE(UsageError, open_corpus(s), "wants a number of tokens; got bpe:many");
  data::save_nanogpt_tokens(folder / "train.bin", std::vector<int32_t>{0, 1});
  s.data = folder / "train.bin";
  s.tokenizer = "char";
  EXPECT_MESSAGE(FileError, open_corpus(s), "pass the tokenizer that made them");
}

}  // namespace
