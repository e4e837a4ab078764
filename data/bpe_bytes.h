// bpe_bytes.h - GPT-2's way to write any byte as a printable character.
//
// Bytes that print stand for themselves; the 68 others, in rising order, for U+0100, U+0101, ...: a
// space is written U+0120. Files stay text, and white space can separate tokens.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tarn::data::detail {

inline bool prints_as_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/// The bytes in the order of their token ids: those that print, then the rest.
std::array<uint8_t, 256> bytes_in_id_order();
/// "a b" gives "aĠb".
std::string printable(std::string_view bytes);
/// The bytes behind printable text; none if a character of it stands for no byte.
std::optional<std::string> unprintable(std::string_view text);

}  // namespace tarn::data::detail
