// data_tokens_test.cpp - token files and windows of tokens.
#include <limits>
#include <numeric>
#include <span>

#include "temp_folder.h"
#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/core/tensor.h"
#include "tarn/data/loader.h"
#include "tarn/data/token_dataset.h"

namespace {

using namespace tarn;
using namespace tarn::data;
using test::slurp;
using test::TempFolder;
using Ids = std::vector<int32_t>;

Ids counting(int32_t n) {
  Ids ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::string little_endian(std::initializer_list<uint32_t> values) {
  std::string bytes;
  for (const uint32_t v : values) bytes.append(reinterpret_cast<const char*>(&v), 4);
  return bytes;
}

TEST(Tokens, files_of_llm_c_and_nanogpt_round_trip) {
  const TempFolder folder;
  const Ids ids{1, 50256, 65535, 0};
  save_llmc_tokens(folder / "a.bin", ids);
  save_nanogpt_tokens(folder / "b.bin", ids);
  EXPECT_EQ(slurp(folder / "a.bin").size(), 1024u + 8);
  EXPECT_EQ(slurp(folder / "b.bin").size(), 8u);
  for (const char* name : {"a.bin", "b.bin"}) {
    const Tokens tokens = Tokens::open(folder / name);
    ASSERT_EQ(tokens.size(), 4);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(tokens[i], ids[static_cast<size_t>(i)]);
    EXPECT_EQ(tokens.slice(1, 2)[1], 65535);
  }
}

TEST(Tokens, wide_ids_stay_wide) {
  const TempFolder folder;
  const Tokens memory(Ids{70000, 1});
  EXPECT_EQ(memory[0], 70000);
  EXPECT_EQ(memory.slice(0, 1)[0], 70000);
  std::string file = little_endian({20240801, 7, 2});
  file.resize(1024);
  const Tokens tokens = Tokens::open(folder.write("l.bin", file + little_endian({128000, 5})));
  EXPECT_EQ(tokens[0], 128000);
  EXPECT_EQ(tokens[1], 5);
}

TEST(Tokens, damaged_files_are_refused_by_name) {
  const TempFolder folder;
  EXPECT_MESSAGE(FileError, Tokens::open(folder / "none.bin"), "none.bin: No such file");
  EXPECT_MESSAGE(FileError, Tokens::open(folder.write("e.bin", "")), "e.bin: the file is empty");
  EXPECT_MESSAGE(FileError, Tokens::open(folder.write("o.bin", "abc")), "o.bin: truncated: 16-bit");
  std::string file = little_endian({20240520, 1, 10});
  file.resize(1024 + 19);
  EXPECT_MESSAGE(FileError, Tokens::open(folder.write("t.bin", file)),
                 "t.bin: truncated: the header says 10 tokens, which take 1044 bytes; the file has "
                 "1043");
  file.resize(1024 + 21);
  EXPECT_MESSAGE(FileError, Tokens::open(folder.write("t.bin", file)), "t.bin: damaged");
  file = little_endian({20240520, 2, 0});
  EXPECT_MESSAGE(FileError, Tokens::open(folder.write("v.bin", file)), "of version 2; version 1");
}

TEST(Tokens, ids_that_fit_no_file_are_refused) {
  const TempFolder folder;
  EXPECT_MESSAGE(ValueError, save_llmc_tokens(folder / "a", Ids{1, 65536}),
                 "llm.c token file: id 65536 at place 1 does not fit 16 bits");
  EXPECT_MESSAGE(ValueError, save_nanogpt_tokens(folder / "a", Ids{-1}),
                 "nanoGPT token file: id -1");
  EXPECT_MESSAGE(ValueError, Tokens(Ids{-1}), "must not be negative; got -1");
  EXPECT_MESSAGE(IndexError, Tokens(Ids{1, 2}).slice(1, 2), "2 from 1 on reach beyond the 2");
  EXPECT_MESSAGE(IndexError, Tokens(Ids{1, 2}).slice(1, std::numeric_limits<int64_t>::max()),
                 "from 1 on reach beyond the 2");
  const int32_t first = 0;  // the others are not looked at
  EXPECT_MESSAGE(ValueError,
                 save_llmc_tokens(folder / "a", std::span<const int32_t>(&first, size_t{1} << 31)),
                 "llm.c token file: 2147483648 ids");
}

TEST(TokenWindows, the_target_is_one_token_further) {
  const TokenDataset data(Tokens(counting(10)), {.block = 3});
  ASSERT_EQ(data.size(), 3);  // 0..2, 3..5, 6..8, each with the token after it
  const std::vector<int64_t> last{2, 0};
  const Batch batch = data.batch(last, {});
  EXPECT_EQ(batch.input.to_vector<int64_t>(), (std::vector<int64_t>{6, 7, 8, 0, 1, 2}));
  EXPECT_EQ(batch.target.to_vector<int64_t>(), (std::vector<int64_t>{7, 8, 9, 1, 2, 3}));
}

TEST(TokenWindows, a_loader_goes_through_them_and_starts_in_the_middle) {
  const TokenDataset data(Tokens(counting(21)), {.block = 4});
  const DataLoader loader(data, {.batch_size = 2, .workers = 1});
  EXPECT_EQ(loader.size(), 3);
  const Batch batch = *loader.epoch(0, 2).next();
  EXPECT_EQ(batch.input.to_vector<int64_t>(), (std::vector<int64_t>{16, 17, 18, 19}));
}

TEST(TokenWindows, random_ones_depend_on_seed_step_and_row_alone) {
  const TokenDataset data(Tokens(counting(1000)), {.block = 8});
  const Batch all = data.random(7, 3, 6);
  const Batch part = data.random(7, 3, 2, 4);  // rows 4 and 5 of the same step
  const auto rows = all.input.to_vector<int64_t>();
  EXPECT_EQ(part.input.to_vector<int64_t>(), std::vector<int64_t>(rows.begin() + 32, rows.end()));
  EXPECT_EQ(data.random(7, 3, 6).input.to_vector<int64_t>(), rows);
  EXPECT_NE(data.random(7, 4, 6).input.to_vector<int64_t>(), rows);
  EXPECT_NE(data.random(8, 3, 6).input.to_vector<int64_t>(), rows);
}

TEST(TokenWindows, random_ones_reach_both_ends) {
  const TokenDataset data(Tokens(counting(6)), {.block = 4});  // two places: 0 and 1
  int64_t seen[2] = {0, 0};
  for (const int64_t id : data.random(1, 0, 400).input.to_vector<int64_t>()) {
    if (id < 1) ++seen[0];
    if (id == 4) ++seen[1];
  }
  EXPECT_GT(seen[0], 150);
  EXPECT_GT(seen[1], 150);
  EXPECT_EQ(seen[0] + seen[1], 400);
}

TEST(TokenWindows, what_cannot_be_cut_or_looked_up_is_an_error) {
  EXPECT_MESSAGE(ValueError, TokenDataset(Tokens(counting(4), "FILE"), {.block = 4}),
                 "FILE has 4 tokens, a window of 4 needs 5");
  EXPECT_MESSAGE(ValueError, TokenDataset(Tokens(counting(4)), {.block = 0}), "at least 1; got 0");
  const TokenDataset data(Tokens(Ids{1, 2, 9, 3, 4}, "FILE"), {.block = 2, .vocab = 9});
  const std::vector<int64_t> first{0}, beyond{2};
  EXPECT_MESSAGE(IndexError, data.batch(first, {}),
                 "token 9 at place 2 of FILE is outside the vocabulary of 9");
  EXPECT_MESSAGE(IndexError, data.batch(beyond, {}), "no window 2 among the 2 of FILE");
}

}  // namespace
