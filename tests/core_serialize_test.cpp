// core_serialize_test.cpp - safetensors: canonical bytes, every rule of the format, torn files.
#include <cmath>
#include <csignal>
#include <limits>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tarn/core/factory.h"
#include "tarn/core/serialize.h"
#include "tarn/core/views.h"
#include "tarn/tests/temp_folder.h"

namespace tarn {
namespace {

using test::slurp;
using test::TempFolder;

/// Length, header and data as a file has them.
std::string file_bytes(const std::string& header, const std::string& data = "") {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> (8 * i));
  return out + header + data;
}

Tensor floats(int n, const Shape& sizes) {
  std::vector<float> v;
  for (int i = 0; i < n; ++i) v.push_back(static_cast<float>(i));
  return from_vector(v, sizes);
}

std::string saved(const TensorDict& tensors, const std::map<std::string, std::string>& meta = {}) {
  const TempFolder folder;
  save_safetensors(folder / "x", tensors, meta);
  return slurp(folder / "x");
}

Safetensors loaded(const std::string& bytes) {
  const TempFolder folder;
  return load_safetensors(folder.write("x", bytes));
}

std::string refusal(const std::string& bytes) {
  const TempFolder folder;
  const std::string path = folder.write("bad.safetensors", bytes);
  const std::string message = test::message_of<FileError>([&] { load_safetensors(path); });
  EXPECT_TRUE(message.empty() || message.find(path) != std::string::npos) << message;
  return message;
}

TEST(SerializeTest, empty_file_is_a_padded_pair_of_braces) {
  EXPECT_EQ(saved({}), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST(SerializeTest, metadata_comes_first_and_is_padded_to_eight) {
  EXPECT_EQ(saved({}, {{"framework", "pt"}}),
            file_bytes("{\"__metadata__\":{\"framework\":\"pt\"}}     "));
}

TEST(SerializeTest, writes_the_bytes_of_the_reference) {
  const Tensor x = floats(6, {1, 2, 3});
  const std::string data(static_cast<const char*>(x.data()), 24);
  const std::string header =
      "{\"attn.0\":{\"dtype\":\"F32\",\"shape\":[1,2,3],\"data_offsets\":[0,24]}}";
  ASSERT_EQ(header.size() % 8, 0u);
  EXPECT_EQ(saved({{"attn.0", x}}), file_bytes(header, data));
  const std::string padded =
      "{\"attn0\":{\"dtype\":\"F32\",\"shape\":[1,1,2,3],\"data_offsets\":[0,24]}}       ";
  ASSERT_EQ(padded.size(), 72u);
  EXPECT_EQ(saved({{"attn0", floats(6, {1, 1, 2, 3})}}), file_bytes(padded, data));
}

TEST(SerializeTest, orders_tensors_by_alignment_then_by_name) {
  TensorDict dict;
  const std::pair<const char*, DType> rows[] = {
      {"a", DType::kBool}, {"b", DType::kU8},  {"c", DType::kF16},
      {"d", DType::kBF16}, {"e", DType::kI32}, {"z", DType::kF32},
      {"y", DType::kF32},  {"g", DType::kF64}, {"h", DType::kI64}};
  for (const auto& [name, dtype] : rows) dict.add(name, zeros({1}, {.dtype = dtype}));
  std::string order;
  for (const auto& [name, tensor] : loaded(saved(dict)).tensors) order += name;
  EXPECT_EQ(order, "hgyzedcba");
}

TEST(SerializeTest, round_trips_every_dtype_shape_and_special_value) {
  const float inf = std::numeric_limits<float>::infinity();
  TensorDict dict;
  dict.add("special", from_vector(std::vector<float>{inf, -inf, -0.0f, NAN, 1e-45f}, {5}));
  for (int d = 0; d < kNumDTypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    dict.add(dtype_name(dtype), ones({2, 3}, {.dtype = dtype}));
    dict.add(std::string("scalar ") + dtype_name(dtype), ones({}, {.dtype = dtype}));
  }
  dict.add("none", zeros({2, 0, 3}));
  dict.add("quote \" slash \\ line\n \xC3\xA9", floats(2, {2}));
  const Safetensors back = loaded(saved(dict, {{"k\"", "v\n"}}));
  EXPECT_EQ(back.metadata.at("k\""), "v\n");
  ASSERT_EQ(back.tensors.size(), dict.size());
  for (const auto& [name, tensor] : dict) {
    const Tensor& other = back.tensors.at(name);
    EXPECT_EQ(other.sizes(), tensor.sizes()) << name;
    ASSERT_EQ(other.dtype(), tensor.dtype()) << name;
    const auto bytes = static_cast<size_t>(tensor.numel() * item_size(tensor.dtype()));
    EXPECT_EQ(std::string(static_cast<const char*>(other.data()), bytes),
              std::string(static_cast<const char*>(tensor.data()), bytes))
        << name;
  }
}

TEST(SerializeTest, packs_strided_tensors_in_row_major_order) {
  const Tensor x = floats(6, {2, 3});
  const TensorDict dict{{"t", raw::t(x)}, {"slice", raw::slice(x, 1, 0, 3, 2)}};
  const Safetensors back = loaded(saved(dict));
  EXPECT_EQ(back.tensors["t"].to_vector<int>(), (std::vector<int>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(back.tensors["slice"].to_vector<int>(), (std::vector<int>{0, 2, 3, 5}));
}

TEST(SerializeTest, reads_what_lenient_writers_wrote) {
  EXPECT_EQ(loaded(file_bytes("\t\n{}\r ")).tensors.size(), 0u);
  const std::string scalar = "{\"test\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]}}";
  EXPECT_EQ(loaded(file_bytes(scalar, std::string("\7\0\0\0", 4))).tensors["test"].item<int>(), 7);
  // Tensors need not stand in offset order in the header, nor fields in any order in a tensor.
  const Safetensors two =
      loaded(file_bytes("{\"b\":{\"shape\":[1],\"data_offsets\":[1,2],\"dtype\":\"U8\"},"
                        "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                        "\1\2"));
  EXPECT_EQ(two.tensors["a"].item<int>(), 1);
  EXPECT_EQ(two.tensors["b"].item<int>(), 2);
}

TEST(SerializeTest, refuses_what_the_reference_refuses) {
  const std::string header =
      "{\"test\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}";
  ASSERT_EQ(header.size(), 60u);
  const std::string valid = file_bytes(header, std::string(16, '\0'));
  EXPECT_EQ(refusal(valid), "");
  EXPECT_NE(refusal(valid + "extra bogus").find("too long"), std::string::npos);
  EXPECT_NE(refusal(valid.substr(0, valid.size() - 2)).find("truncated"), std::string::npos);
  EXPECT_NE(refusal("").find("the header length takes 8"), std::string::npos);
  EXPECT_NE(refusal(std::string("<\0\0\0\0\xff\xff\xff", 8)).find("at most"), std::string::npos);
  EXPECT_NE(refusal(std::string("<\0\0\0\0\0\0\0", 8)).find("truncated"), std::string::npos);
  EXPECT_NE(refusal(file_bytes("\xff")).find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal(file_bytes("{")).find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal(file_bytes("[]")).find("must be a JSON object"), std::string::npos);

  const auto with = [](const std::string& shape, const std::string& offsets) {
    return file_bytes(
        "{\"test\":{\"dtype\":\"I32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}",
        std::string(16, '\0'));
  };
  EXPECT_NE(refusal(with("[2,2]", "[0,4]")).find("'test' needs 16 bytes"), std::string::npos);
  EXPECT_NE(refusal(with("[2,18446744073709551614]", "[0,16]")).find("overflows"),
            std::string::npos);
  EXPECT_NE(refusal(with("[2,9223372036854775807]", "[0,16]")).find("overflows"),
            std::string::npos);
  EXPECT_NE(refusal(with("[2,18446744073709551616]", "[0,16]")).find("no 64-bit integer"),
            std::string::npos);
  EXPECT_NE(refusal(with("[2,2e0]", "[0,16]")).find("no 64-bit integer"), std::string::npos);
  EXPECT_NE(refusal(with("[-2,2]", "[0,16]")).find("negative"), std::string::npos);
  EXPECT_NE(refusal(with("[2,2]", "[4,20]")).find("must begin at 0"), std::string::npos);
  EXPECT_NE(refusal(with("[2,2]", "[0,16,32]")).find("two numbers"), std::string::npos);
  EXPECT_NE(refusal(with("\"x\"", "[0,16]")).find("must not hold a string"), std::string::npos);
  EXPECT_NE(refusal(with("null", "[0,16]")).find("must not hold null"), std::string::npos);
  EXPECT_NE(refusal(with("[[2],2]", "[0,16]")).find("must not hold an array"), std::string::npos);
}

TEST(SerializeTest, refuses_overlaps_holes_and_duplicates) {
  std::string ten = "{";
  for (int i = 0; i < 10; ++i) {
    ten += (i ? ",\"" : "\"") + std::to_string(i) +
           "\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}";
  }
  EXPECT_NE(refusal(file_bytes(ten + "}", std::string(16, '\0'))).find("must begin at 16"),
            std::string::npos);
  const std::string one = "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}";
  EXPECT_NE(
      refusal(file_bytes("{\"a\":" + one + ",\"a\":" + one + "}", "x")).find("'a' appears twice"),
      std::string::npos);
  EXPECT_NE(
      refusal(file_bytes("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}")).find("appears twice"),
      std::string::npos);
  EXPECT_NE(refusal(file_bytes("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}")).find("no data_offsets"),
            std::string::npos);
  EXPECT_NE(refusal(file_bytes("{\"a\":{\"more\":1}}")).find("unknown field 'more'"),
            std::string::npos);
  EXPECT_NE(refusal(file_bytes("{\"a\":3}")).find("'a' must be an object"), std::string::npos);
  EXPECT_NE(refusal(file_bytes("{\"__metadata__\":{\"a\":1}}")).find("must not hold"),
            std::string::npos);
}

TEST(SerializeTest, names_dtypes_it_does_not_have) {
  const auto with = [](const std::string& dtype) {
    return file_bytes("{\"w\":{\"dtype\":\"" + dtype + "\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                      "x");
  };
  EXPECT_NE(refusal(with("I8")).find("'w' has dtype I8, which tarn does not have"),
            std::string::npos);
  EXPECT_NE(refusal(with("F33")).find("unknown dtype 'F33'"), std::string::npos);
  EXPECT_NE(refusal(with("F4")).find("whole byte"), std::string::npos);
}

TEST(SerializeTest, refuses_shapes_no_tensor_can_have) {
  const auto with = [](const std::string& shape) {
    return file_bytes("{\"w\":{\"dtype\":\"U8\",\"shape\":" + shape + ",\"data_offsets\":[0,0]}}");
  };
  EXPECT_NE(refusal(with("[0,1,1,1,1,1,1,1,1]")).find("9 dimensions; at most 8"),
            std::string::npos);
  EXPECT_NE(refusal(with("[0,9223372036854775807,9223372036854775807]")).find("overflows"),
            std::string::npos);
}

TEST(SerializeTest, refuses_a_file_cut_at_any_length) {
  const std::string bytes =
      saved({{"a", floats(2, {2})}, {"b", ones({3}, {.dtype = DType::kU8})}}, {{"step", "17"}});
  const TempFolder folder;
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::string path = folder.write("cut", bytes.substr(0, n));
    EXPECT_NE(test::message_of<FileError>([&] { load_safetensors(path); }), "") << n << " bytes";
  }
}

TEST(SerializeTest, survives_a_flip_of_any_header_bit) {
  const std::string bytes = saved({{"a", floats(2, {2})}, {"b", floats(1, {1})}}, {{"k", "v"}});
  const TempFolder folder;
  const size_t header = bytes.size() - 12;
  for (size_t i = 0; i < header * 8; ++i) {
    std::string bad = bytes;
    bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << (i % 8)));
    const std::string path = folder.write("bad", bad);
    try {
      load_safetensors(path);  // another name or metadata is still a valid file
    } catch (const FileError&) {
    }
  }
}

TEST(SerializeTest, keeps_the_old_file_when_the_disk_is_full) {
  const TempFolder folder;
  const std::string path = folder / "model.safetensors";
  save_safetensors(path, {{"old", floats(4, {4})}});
  const std::string before = slurp(path);
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);  // as a full disk: write() comes back with an error
  const std::string message = test::message_of<FileError>([&] {
    save_safetensors(path, {{"new", zeros({100, 100})}});
  });
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_NE(message.find("save_safetensors: cannot write " + path + ": File too large"),
            std::string::npos)
      << message;
  EXPECT_EQ(slurp(path), before);
  EXPECT_EQ(folder.entries(), 1u) << "the temporary file stayed behind";
}

TEST(SerializeTest, names_the_path_it_cannot_open) {
  const TempFolder folder;
  EXPECT_MESSAGE(FileError, load_safetensors(folder / "none"),
                 "load_safetensors: cannot open " + (folder / "none") + ": No such file");
  EXPECT_MESSAGE(FileError, load_safetensors(folder.str()), "it is a folder");
  EXPECT_MESSAGE(FileError, load_safetensors("/dev/null"), "not a plain file");
  EXPECT_MESSAGE(FileError, save_safetensors(folder / "no/such/folder", {}),
                 "cannot write " + (folder / "no/such/folder") + ": No such file");
}

TEST(SerializeTest, refuses_names_and_tensors_a_file_cannot_hold) {
  const TempFolder folder;
  EXPECT_MESSAGE(ValueError, save_safetensors(folder / "x", {{"\xff", floats(1, {1})}}),
                 "must be UTF-8");
  EXPECT_MESSAGE(ValueError, save_safetensors(folder / "x", {{"__metadata__", floats(1, {1})}}),
                 "cannot be the name of a tensor");
  EXPECT_MESSAGE(ValueError, save_safetensors(folder / "x", {{"a", Tensor()}}),
                 "tensor 'a' is undefined");
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(TensorDictTest, refuses_duplicates_and_names_what_is_missing) {
  TensorDict dict{{"a", floats(1, {1})}};
  EXPECT_MESSAGE(ValueError, dict.add("a", floats(1, {1})), "two tensors are named 'a'");
  EXPECT_MESSAGE(IndexError, dict.at("b"), "no tensor is named 'b' among 1; the first is 'a'");
}

}  // namespace
}  // namespace tarn
