// unicode.h - UTF-8 and the few properties of characters that tokenizers ask for.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tarn::data {

/// One character of a text and how many bytes it takes.
struct CodePoint {
  uint32_t value = 0;
  int64_t bytes = 1;
  bool valid = true;  ///< false: the byte at this place begins no UTF-8 character
};

/// The character at byte `at`. REQUIRES: at < text.size().
CodePoint code_point_at(std::string_view text, size_t at);
/// Adds a character to a text as UTF-8.
void append_utf8(std::string& text, uint32_t code_point);

bool is_letter(uint32_t c);       ///< \p{L}
bool is_number(uint32_t c);       ///< \p{N}
bool is_space(uint32_t c);        ///< White_Space, what \s means in regular expressions
bool is_punctuation(uint32_t c);  ///< \p{P}, or a symbol among the ASCII characters
bool is_control(uint32_t c);      ///< \p{Cc}, \p{Cf}, \p{Co}: control, format, private use
bool is_ideograph(uint32_t c);    ///< CJK, as BERT's tokenizers separate it

/// Adds c in lower case, canonically decomposed, without accents: "É" gives "e".
void append_folded(std::string& text, uint32_t c);

}  // namespace tarn::data
