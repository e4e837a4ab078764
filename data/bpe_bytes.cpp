// bpe_bytes.cpp - bytes as printable characters and back.
#include "tarn/data/bpe_bytes.h"

#include "tarn/data/unicode.h"

namespace tarn::data::detail {

std::array<uint8_t, 256> bytes_in_id_order() {
  std::array<uint8_t, 256> order{};
  size_t next = 0;
  for (const bool prints : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (prints_as_itself(byte) == prints) order[next++] = static_cast<uint8_t>(byte);
    }
  }
  return order;
}

namespace {

struct Tables {
  std::array<uint32_t, 256> character{};
  std::array<int16_t, 512> byte{};  // by code point; -1: none
  Tables() {
    byte.fill(-1);
    uint32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const uint32_t c = prints_as_itself(b) ? static_cast<uint32_t>(b) : next++;
      character[static_cast<size_t>(b)] = c;
      byte[c] = static_cast<int16_t>(b);
    }
  }
};

const Tables& tables() {
  static const Tables t;
  return t;
}

}  // namespace

std::string printable(std::string_view bytes) {
  std::string text;
  for (const char b : bytes) append_utf8(text, tables().character[static_cast<uint8_t>(b)]);
  return text;
}

std::optional<std::string> unprintable(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (!c.valid || c.value >= 512 || tables().byte[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(tables().byte[c.value]);
    at += static_cast<size_t>(c.bytes);
  }
  return bytes;
}

}  // namespace tarn::data::detail
