// core_checkpoint_test.cpp - checkpoints: what is saved is loaded, and all damage is found.
#include <cmath>
#include <limits>

#include "temp_folder.h"
#include "tests_throws.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tarn/core/checkpoint.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

namespace fs = std::filesystem;
using test::slurp;
using test::TempFolder;

// CRC-32 as in ISO 3309, a bit at a time.
std::string crc(const std::string& bytes) {
  uint32_t value = ~0u;
  for (const char byte : bytes) {
    value ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
  }
  char text[9];
  std::snprintf(text, sizeof text, "%08x", ~value);
  return text;
}

// Puts a manifest in place, with a checksum of its own.
void write_manifest(const TempFolder& folder, nlohmann::json manifest) {
  manifest.erase("crc32");
  manifest["crc32"] = crc(manifest.dump());
  folder.write("c/manifest.json", manifest.dump(2) + "\n");
}

Checkpoint small() {
  Checkpoint c{.step = 7, .tensors = {{"model", {{"w", tensor({1.0f, 2.0f, 3.0f})}}}}};
  c.tensors["optim"] = {{"m", tensor({0.5f})}};
  c.values["loss"] = 0.1;
  c.generators["default"] = {.seed = 3, .offset = 4};
  return c;
}

TEST(Checkpoint, what_is_saved_is_loaded) {
  const TempFolder folder;
  const Tensor x = arange(6).to(DType::kBF16).view({2, 3});
  Checkpoint c{.step = 12345678901,
               .best = true,
               .tensors = {{"model", {{"a", x.t()}, {"b", tensor({1.5}).to(DType::kF64)}}},
                           {"optim", {{"n", scalar_tensor(int64_t{-3}, {.dtype = DType::kI64})}}},
                           {"none", {}}}};
  const double inf = std::numeric_limits<double>::infinity();
  const int64_t least = std::numeric_limits<int64_t>::min();
  c.values = {{"least", least},    {"third", 1.0 / 3}, {"minus zero", -0.0}, {"one", 1.0},
              {"text", "\"ä\"\n"}, {"nan", NAN},       {"inf", inf},         {"-inf", -inf}};
  c.generators = {{"default", {~uint64_t{0}, uint64_t{1} << 63}}, {"other", {1, 2}}};
  save_checkpoint(folder / "c", c);
  save_checkpoint(folder / "c", c);  // replaces
  EXPECT_EQ(folder.entries(), 1u);
  const Checkpoint back = load_checkpoint(folder / "c");
  EXPECT_EQ(back.step, c.step);
  EXPECT_TRUE(back.best);
  EXPECT_EQ(back.dict("model").at("a").sizes(), (Shape{3, 2}));
  EXPECT_EQ(back.dict("model").at("a").dtype(), DType::kBF16);
  EXPECT_EQ(back.dict("model").at("a").to_vector<float>(), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(back.dict("model").at("b").item<double>(), 1.5);
  EXPECT_EQ(back.dict("optim").at("n").item<int64_t>(), -3);
  EXPECT_TRUE(back.dict("none").empty());
  EXPECT_FALSE(fs::exists(folder / "c/none.safetensors"));
  EXPECT_EQ(back.integer("least"), least);
  EXPECT_EQ(back.number("third"), 1.0 / 3);
  EXPECT_TRUE(std::signbit(back.number("minus zero")));
  EXPECT_EQ(back.number("one"), 1.0) << "stays a number, not an integer";
  EXPECT_EQ(back.text("text"), "\"ä\"\n");
  EXPECT_TRUE(std::isnan(back.number("nan")));
  EXPECT_EQ(back.number("inf"), inf);
  EXPECT_EQ(back.number("-inf"), -inf);
  EXPECT_EQ(back.generator("default").seed, ~uint64_t{0});
  EXPECT_EQ(back.generator("default").offset, uint64_t{1} << 63);
  EXPECT_EQ(back.generator("other").offset, 2u);
  EXPECT_THROWS_WITH(back.integer("one"), FileError, "has no integer 'one'");
  EXPECT_THROWS_WITH(back.number("two"), FileError, "step 12345678901 has no number 'two'");
  EXPECT_THROWS_WITH(back.text("one"), FileError, "has no text 'one'");
  EXPECT_THROWS_WITH(back.generator("x"), FileError, "has no generator 'x'");
}

TEST(Checkpoint, the_manifest_has_the_checksum_of_each_file) {
  const TempFolder folder;
  save_checkpoint(folder / "c", small());
  const std::string text = slurp(folder / "c/manifest.json");
  auto manifest = nlohmann::json::parse(text);
  for (const char* file : {"model.safetensors", "optim.safetensors"}) {
    const std::string bytes = slurp(folder / "c/" + file);
    EXPECT_EQ(manifest.at("files").at(file).at("crc32"), crc(bytes));
    EXPECT_EQ(manifest.at("files").at(file).at("bytes"), bytes.size());
  }
  const std::string own = manifest.at("crc32");
  manifest.erase("crc32");
  EXPECT_EQ(own, crc(manifest.dump()));
}

TEST(Checkpoint, only_what_is_asked_for_is_read) {
  const TempFolder folder;
  save_checkpoint(folder / "c", small());
  fs::resize_file(folder / "c/optim.safetensors", 3);
  const Checkpoint c = load_checkpoint(folder / "c", {"model"});
  EXPECT_EQ(c.tensors.size(), 1u);
  EXPECT_EQ(c.number("loss"), 0.1);
}

TEST(Checkpoint, every_flipped_bit_is_found) {
  const TempFolder folder(test::memory_folder());
  save_checkpoint(folder / "c", small());
  int64_t flips = 0;
  for (const char* file : {"model.safetensors", "optim.safetensors", "manifest.json"}) {
    const std::string whole = slurp(folder / "c/" + file);
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int bit : {0, static_cast<int>(at % 7) + 1}) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 1 << bit);
        folder.write(std::string("c/") + file, damaged);
        EXPECT_THROWS_WITH(load_checkpoint(folder / "c"), FileError, file);
        ++flips;
      }
    }
    folder.write(std::string("c/") + file, whole);
  }
  EXPECT_GT(flips, 1000);
  EXPECT_EQ(load_checkpoint(folder / "c").step, 7);
}

TEST(Checkpoint, files_of_another_length_and_missing_ones_are_named) {
  const TempFolder folder(test::memory_folder());
  save_checkpoint(folder / "c", small());
  for (const char* file : {"model.safetensors", "manifest.json"}) {
    const std::string whole = slurp(folder / "c/" + file);
    for (size_t size = 0; size < whole.size(); size += 5) {
      folder.write(std::string("c/") + file, whole.substr(0, size));
      EXPECT_THROWS_WITH(load_checkpoint(folder / "c"), FileError, file);
    }
    folder.write(std::string("c/") + file, whole + " ");
    EXPECT_THROWS_WITH(load_checkpoint(folder / "c"), FileError, file);
    folder.write(std::string("c/") + file, whole);
  }
  fs::resize_file(folder / "c/model.safetensors", 10);
  fs::remove(folder / "c/optim.safetensors");
  EXPECT_THROWS_WITH(load_checkpoint(folder / "c"), FileError,
                     "checkpoint: " + folder /
                                          "c is damaged: model.safetensors has 10 bytes "
                                          "instead of ");
  EXPECT_THROWS_WITH(load_checkpoint(folder / "c"), FileError, "; optim.safetensors is missing");
  fs::remove(folder / "c/manifest.json");
  EXPECT_THROWS_WITH(load_checkpoint(folder / "c"), FileError,
                     folder / "c has no manifest.json: it is not whole");
  EXPECT_THROWS_WITH(load_checkpoint(folder / "d"), FileError, "no folder " + folder / "d");
}

TEST(Checkpoint, a_newer_format_is_one_clear_error) {
  const TempFolder folder;
  save_checkpoint(folder / "c", small());
  auto manifest = nlohmann::json::parse(slurp(folder / "c/manifest.json"));
  manifest["format"] = 2;
  manifest["novelty"] = {1, 2, 3};
  write_manifest(folder, manifest);
  EXPECT_THROWS_WITH(load_checkpoint(folder / "c"), ValueError,
                     folder / "c has format 2, of a newer version of tarn; this one reads up to 1");
}

TEST(Checkpoint, a_manifest_that_says_something_else_is_the_files_fault) {
  const TempFolder folder;
  save_checkpoint(folder / "c", small());
  const auto manifest = nlohmann::json::parse(slurp(folder / "c/manifest.json"));
  const auto refuses = [&](const nlohmann::json& changed) {
    write_manifest(folder, changed);
    EXPECT_THROWS_WITH(load_checkpoint(folder / "c"), FileError,
                       "checkpoint: " + folder / "c/manifest.json is not what tarn writes: ");
  };
  for (const char* member : {"format", "step", "best", "files", "values", "generators"}) {
    auto without = manifest;
    without.erase(member);
    refuses(without);
    EXPECT_FALSE(detail::is_best_checkpoint(folder / "c"));
    auto other = manifest;
    other[member] =
        std::string(member) == "step" ? nlohmann::json("7") : nlohmann::json::array({1});
    refuses(other);
  }
  auto value = manifest;
  value["values"]["loss"] = {{"text", 1}};
  refuses(value);
  write_manifest(folder, manifest);
  EXPECT_EQ(load_checkpoint(folder / "c").step, 7);
}

TEST(Checkpoint, what_cannot_be_saved_leaves_the_old_one) {
  const TempFolder folder;
  save_checkpoint(folder / "c", small());
  Checkpoint c = small();
  c.step = 8;
  c.tensors["other"].add("undefined", Tensor());
  EXPECT_THROWS_WITH(save_checkpoint(folder / "c", c), ValueError,
                     "checkpoint: cannot save " + folder / "c: save_safetensors: tensor 'undef");
  c = small();
  c.tensors["../x"] = c.tensors["model"];
  EXPECT_THROWS_WITH(save_checkpoint(folder / "c", c), ValueError, "'../x' cannot be the name");
  folder.write("file", "");
  EXPECT_THROWS_WITH(save_checkpoint(folder / "file/c", small()), FileError,
                     "checkpoint: cannot save " + folder / "file/c: ");
  EXPECT_EQ(folder.entries(), 2u) << "nothing half written stays";
  EXPECT_EQ(load_checkpoint(folder / "c").step, 7);
}

TEST(Checkpoint, a_copy_shares_nothing) {
  const Tensor w = tensor({1.0f, 2.0f}), t = arange(4).view({2, 2}).t();
  const Checkpoint c{.step = 1, .tensors = {{"model", {{"w", w}, {"t", t}}}}};
  const Checkpoint copy = c.copy();
  raw::fill_(w, 9.0);
  raw::fill_(t, 9.0);
  EXPECT_EQ(copy.dict("model").at("w").to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ(copy.dict("model").at("t").to_vector<double>(), (std::vector<double>{0, 2, 1, 3}));
  EXPECT_EQ(c.dict("model").at("w").to_vector<float>(), (std::vector<float>{9, 9}));
}

}  // namespace
}  // namespace tarn
