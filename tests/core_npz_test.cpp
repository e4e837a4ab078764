// core_npz_test.cpp - .npy and .npz: byte for byte what numpy 1.24 writes, and what it may read.
#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/core/npz.h"
#include "tarn/core/views.h"
#include "tarn/tests/temp_folder.h"
#include "tarn/tests/tiny_images.h"

namespace tarn {
namespace {

using test::slurp;
using test::TempFolder;

/// numpy.savez(w=numpy.arange(3, dtype='u1'))
const std::string kStored = test::from_hex(
    "504b03041400000000000000210048ea66ec830000008300000005001400772e6e7079010010008300000000000000"
    "8300000000000000934e554d5059010076007b276465736372273a20277c7531272c2027666f727472616e5f6f7264"
    "6572273a2046616c73652c20277368617065273a2028332c292c207d20202020202020202020202020202020202020"
    "20202020202020202020202020202020202020202020202020202020202020202020202020202020200a000102504b"
    "010214031400000000000000210048ea66ec8300000083000000050000000000000000000000800100000000772e6e"
    "7079504b0506000000000100010033000000ba0000000000");
/// numpy.savez_compressed(w=numpy.zeros((2, 3), 'f4'), v=numpy.arange(3))
const std::string kDeflated = test::from_hex(
    "504b03041400000008000000210078b32618490000009800000005001400772e6e7079010010009800000000000000"
    "49000000000000009bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a06e9366a2aea3a09e965f54529498179f5f94"
    "920a12774bcc294e058a17672416a402f91a463a0ac69a3a0ab50a64032e061c0000504b0304140000000800000021"
    "00f74012ea4c0000009800000005001400762e6e70790100100098000000000000004c000000000000009bec17ea1b"
    "10c9c850c650ad9e925a9c5ca46ea5a06e9369a1aea3a09e965f54529498179f5f94920a12774bcc294e058a176724"
    "16a402f91ac63a9a3a0ab50a14002e06286084d24c501a00504b010214031400000008000000210078b32618490000"
    "0098000000050000000000000000000000800100000000772e6e7079504b0102140314000000080000002100f74012"
    "ea4c00000098000000050000000000000000000000800180000000762e6e7079504b05060000000002000200660000"
    "00030100000000");

std::string npy(const std::string& dict, const std::string& data, int version = 1) {
  std::string text = dict + "\n";
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
    out += static_cast<char>(text.size() >> (8 * i));
  }
  return out + text + data;
}

std::string dict(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }";
}

Tensor loaded(const std::string& bytes) {
  const TempFolder folder;
  return load_npy(folder.write("x.npy", bytes));
}

std::string refusal(const std::string& bytes) {
  const TempFolder folder;
  const std::string path = folder.write("bad.npy", bytes);
  return test::message_of<FileError>([&] { load_npy(path); });
}

TEST(NpyTest, writes_the_header_that_numpy_writes) {
  const TempFolder folder;
  const std::string path = folder / "x.npy";
  save_npy(path, zeros({2, 3}));
  std::string expected = "\x93NUMPY\x01";
  expected += '\0';
  expected += "v";
  expected += '\0';
  expected += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  expected.resize(127, ' ');
  expected += '\n';
  EXPECT_EQ(slurp(path), expected + std::string(24, '\0'));
  const std::pair<Shape, const char*> shapes[] = {{{}, "()"}, {{3}, "(3,)"}, {{0}, "(0,)"}};
  for (const auto& [shape, text] : shapes) {
    save_npy(path, zeros(shape));
    EXPECT_NE(slurp(path).find(std::string("'shape': ") + text + ", }"), std::string::npos);
  }
}

TEST(NpyTest, round_trips_every_dtype_and_stride) {
  const TempFolder folder;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kI64, DType::kI32,
                            DType::kU8, DType::kBool}) {
    const Tensor x = raw::t(tensor({0, 1, 1, 0, 1, 0}, {2, 3}, {.dtype = dtype}));
    save_npy(folder / "x.npy", x);
    const Tensor back = load_npy(folder / "x.npy");
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.sizes(), (Shape{3, 2}));
    EXPECT_EQ(back.to_vector<int>(), (std::vector<int>{0, 0, 1, 1, 1, 0}));
  }
  EXPECT_MESSAGE(DTypeError, save_npy(folder / "b.npy", zeros({1}, {.dtype = DType::kBF16})),
                 "numpy has no bf16");
  EXPECT_MESSAGE(ValueError, save_npy(folder / "b.npy", Tensor()), "the tensor is undefined");
}

TEST(NpyTest, reads_foreign_byte_order_fortran_order_and_widths) {
  const Tensor big =
      loaded(npy(dict(">i2", "(2, 3)"), std::string("\0\0\0\1\0\2\0\3\0\4\xff\xff", 12)));
  EXPECT_EQ(big.dtype(), DType::kI32);
  EXPECT_EQ(big.to_vector<int>(), (std::vector<int>{0, 1, 2, 3, 4, -1}));
  const Tensor fortran = loaded(npy(dict("|u1", "(2, 3)", true), std::string("\0\3\1\4\2\5", 6)));
  EXPECT_EQ(fortran.to_vector<int>(), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(loaded(npy(dict("|i1", "(2,)"), "\xff\1")).to_vector<int>(), (std::vector<int>{-1, 1}));
  EXPECT_EQ(loaded(npy(dict("<u2", "(1,)"), "\xff\xff")).to_vector<int>()[0], 65535);
  EXPECT_EQ(loaded(npy(dict("<u4", "()"), "\xff\xff\xff\xff")).item<int64_t>(), 4294967295);
  EXPECT_EQ(loaded(npy(dict("<u8", "()"), std::string("\7\0\0\0\0\0\0\0", 8))).item<int>(), 7);
  EXPECT_EQ(loaded(npy(dict("|b1", "(2,)"), std::string("\0\2", 2))).to_vector<int>(),
            (std::vector<int>{0, 1}));
}

TEST(NpyTest, reads_later_versions_and_ignores_trailing_bytes) {
  for (const int version : {1, 2, 3}) {
    EXPECT_EQ(loaded(npy(dict("|u1", "(2,)"), "\1\2rest", version)).numel(), 2);
  }
  EXPECT_EQ(loaded(npy("{\"shape\": (1,), \"fortran_order\": False, \"descr\": \"|u1\"}", "\5"))
                .item<int>(),
            5);
}

TEST(NpyTest, refuses_what_is_no_tensor) {
  EXPECT_NE(refusal("PK\3\4 is an archive").find("wrong magic"), std::string::npos);
  EXPECT_NE(refusal(npy(dict("|O", "(1,)"), "x")).find("dtype '|O' is not supported"),
            std::string::npos);
  EXPECT_NE(refusal(npy(dict("<c8", "(1,)"), "x")).find("not supported"), std::string::npos);
  EXPECT_NE(refusal(npy(dict("<U5", "(1,)"), "x")).find("not supported"), std::string::npos);
  EXPECT_NE(refusal(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", ""))
                .find("structured"),
            std::string::npos);
  EXPECT_NE(refusal(npy("{'descr': '<f4', 'shape': (1,)}", "")).find("no key 'fortran_order'"),
            std::string::npos);
  EXPECT_NE(refusal(npy("{'more': 1}", "")).find("unknown key 'more'"), std::string::npos);
  EXPECT_NE(refusal(npy(dict("<f4", "(-1,)"), "")).find("a size expected"), std::string::npos);
  EXPECT_NE(refusal(npy(dict("<f4", "(99999999999999999999,)"), "")).find("overflows"),
            std::string::npos);
  EXPECT_NE(refusal(npy(dict("<f4", "(4294967296, 4294967296)"), "")).find("overflows"),
            std::string::npos);
  EXPECT_NE(refusal(npy(dict("<f4", "(1,1,1,1,1,1,1,1,1)"), "")).find("9 dimensions"),
            std::string::npos);
  EXPECT_NE(refusal(npy(dict("<f4", "(1000000000,)"), "")).find("truncated"), std::string::npos);
  EXPECT_NE(refusal(npy(dict("<u8", "()"), std::string(8, '\xff'))).find("does not fit"),
            std::string::npos);
  EXPECT_NE(refusal(npy(dict("|u1", "(1,)"), "x", 9)).find("unknown .npy version 9"),
            std::string::npos);
}

TEST(NpyTest, refuses_a_file_cut_at_any_length) {
  const std::string bytes = npy(dict("<f4", "(2,)"), std::string(8, '\0'));
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_NE(refusal(bytes.substr(0, n)), "") << n << " bytes";
  }
}

TEST(NpzTest, reads_what_numpy_wrote) {
  const TempFolder folder;
  const TensorDict stored = load_npz(folder.write("a.npz", kStored));
  EXPECT_EQ(stored["w"].to_vector<int>(), (std::vector<int>{0, 1, 2}));
  const TensorDict deflated = load_npz(folder.write("b.npz", kDeflated));
  EXPECT_EQ(deflated["w"].sizes(), (Shape{2, 3}));
  EXPECT_EQ(deflated["v"].to_vector<int>(), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(deflated.begin()->first, "w");
}

TEST(NpzTest, writes_the_bytes_that_numpy_writes) {
  const TempFolder folder;
  save_npz(folder / "a.npz", {{"w", tensor({0, 1, 2}, {.dtype = DType::kU8})}});
  EXPECT_EQ(slurp(folder / "a.npz"), kStored);
}

TEST(NpzTest, round_trips_compressed_archives) {
  const TempFolder folder;
  const TensorDict tensors{
      {"a", arange(1000)}, {"scalar", scalar_tensor(2.5)}, {"none", zeros({0})}};
  save_npz(folder / "a.npz", tensors, {.compress = true});
  const TensorDict back = load_npz(folder / "a.npz");
  EXPECT_EQ(back["a"].to_vector<int>(), tensors["a"].to_vector<int>());
  EXPECT_EQ(back["scalar"].item(), 2.5);
  EXPECT_EQ(back["none"].sizes(), (Shape{0}));
  EXPECT_LT(slurp(folder / "a.npz").size(), 5000u);
  EXPECT_MESSAGE(ValueError, save_npz(folder / "b.npz", {{"u", Tensor()}}), "'u' is undefined");
}

TEST(NpzTest, reads_sizes_from_the_zip64_field) {
  std::string bytes = kStored;
  const size_t entry = bytes.find("PK\1\2"), name = entry + 46, end = bytes.find("PK\5\6");
  const std::string sizes = bytes.substr(entry + 20, 4);  // packed = unpacked, below 2^32
  bytes.replace(entry + 20, 8, std::string(8, '\xff'));
  bytes[entry + 30] = 20;  // extra field: id 1, 16 bytes, unpacked and packed size
  std::string extra("\1\0\x10\0", 4);
  for (int i = 0; i < 2; ++i) extra += sizes + std::string(4, '\0');
  bytes[end + 12] = static_cast<char>(bytes[end + 12] + 20);  // bytes of the directory
  bytes.insert(name + 5, extra);
  const TempFolder folder;
  EXPECT_EQ(load_npz(folder.write("a.npz", bytes))["w"].to_vector<int>(),
            (std::vector<int>{0, 1, 2}));
  bytes[entry + 30 + 0] = 20;
  bytes[name + 5 + 2] = 8;  // room for one number only
  EXPECT_MESSAGE(FileError, load_npz(folder.write("b.npz", bytes)), "short zip64 field");
}

TEST(NpzTest, holds_more_members_than_16_bits_count) {
  const TempFolder folder;
  const Tensor one = tensor({7}, {.dtype = DType::kU8});
  TensorDict many;
  for (int i = 0; i < 65536; ++i) many.add(std::to_string(i), one);
  save_npz(folder / "a.npz", many);
  const TensorDict back = load_npz(folder / "a.npz");
  ASSERT_EQ(back.size(), 65536u);
  EXPECT_EQ(back["65535"].item<int>(), 7);
}

TEST(NpzTest, refuses_an_archive_cut_at_any_length) {
  const TempFolder folder;
  for (size_t n = 0; n < kStored.size(); ++n) {
    const std::string path = folder.write("cut", kStored.substr(0, n));
    EXPECT_NE(test::message_of<FileError>([&] { load_npz(path); }), "") << n << " bytes";
  }
}

TEST(NpzTest, notices_every_damaged_data_byte) {
  const TempFolder folder;
  for (const std::string& whole : {kStored, kDeflated}) {
    for (size_t i = 55; i < 120; ++i) {  // inside the first member's data
      std::string bad = whole;
      bad[i] = static_cast<char>(bad[i] ^ 0x10);
      const std::string path = folder.write("bad.npz", bad);
      EXPECT_NE(test::message_of<FileError>([&] { load_npz(path); }).find("'w.npy'"),
                std::string::npos)
          << i;
    }
  }
  std::string other = kStored;
  other[kStored.find("PK\1\2") + 10] = 12;  // bzip2
  EXPECT_MESSAGE(FileError, load_npz(folder.write("m", other)), "packed by method 12");
  EXPECT_MESSAGE(FileError, load_npz(folder.write("n", std::string(100, 'x'))),
                 "not a zip archive");
}

}  // namespace
}  // namespace tarn
