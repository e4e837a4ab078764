// tiny_images.h - two pictures small enough to stand in a test.
#pragma once

#include <string>

namespace tarn::test {

inline std::string from_hex(const std::string& text) {
  std::string out;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    out += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return out;
}

/// 2 x 2, RGB: red, green; blue, (9, 8, 7).
inline const std::string kTinyPng = from_hex(
    "89504e470d0a1a0a0000000d4948445200000002000000020802000000fdd49a730000001649444154789c63f8cfc0"
    "c0"
    "f09f818181e13f27073b001a2603165c56fbd80000000049454e44ae426082");

/// 8 x 8, grey 128.
inline const std::string kTinyJpeg = from_hex(
    "ffd8ffe000104a46494600010100000100010000ffdb0043001b12141714111b1716171e1c1b2028422b2825252851"
    "3a"
    "3d3042605565645f555d5b6a7899816a7190735b5d85b586909ea3abadab6780bcc9baa6c799a8aba4ffc0000b0800"
    "08"
    "000801011100ffc4001f0000010501010101010100000000000000000102030405060708090a0bffc400b510000201"
    "03"
    "03020403050504040000017d01020300041105122131410613516107227114328191a1082342b1c11552d1f0243362"
    "72"
    "82090a161718191a25262728292a3435363738393a434445464748494a535455565758595a636465666768696a7374"
    "75"
    "767778797a838485868788898a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8"
    "c9"
    "cad2d3d4d5d6d7d8d9dae1e2e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9faffda0008010100003f002bffd9");

}  // namespace tarn::test
