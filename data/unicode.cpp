// unicode.cpp - UTF-8, character classes by bisection, folding by table.
#include "tarn/data/unicode.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "tarn/data/unicode_tables.h"

namespace tarn::data {
namespace {

// Pairs first, last in rising order: c is inside if the first pair that ends at or after c begins
// at or before it.
bool in_ranges(uint32_t c, const uint32_t* pairs, size_t count) {
  size_t low = 0, high = count;
  while (low < high) {
    const size_t mid = (low + high) / 2;
    if (pairs[2 * mid + 1] < c) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return low < count && pairs[2 * low] <= c;
}

bool in_any(uint32_t c, std::initializer_list<std::array<uint32_t, 2>> ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [c](const auto& r) { return r[0] <= c && c <= r[1]; });
}

const std::unordered_map<uint32_t, std::string>& folds() {
  static const auto* map = [] {
    auto* m = new std::unordered_map<uint32_t, std::string>;  // never freed: used at exit too
    std::string_view rest = detail::kFolds;
    while (!rest.empty()) {
      const size_t end = rest.find(' ');
      const std::string_view word = rest.substr(0, end);
      const size_t mark = word.find('~');
      for (size_t at = mark + 1; at < word.size();) {
        const CodePoint c = code_point_at(word, at);
        m->emplace(c.value, word.substr(0, mark));
        at += static_cast<size_t>(c.bytes);
      }
      rest.remove_prefix(end + 1);
    }
    return m;
  }();
  return *map;
}

// Hangul syllables are decomposed by arithmetic (The Unicode Standard, section 3.12).
constexpr uint32_t kHangul = 0xAC00, kHangulCount = 11172, kVowels = 21, kTails = 28;

void append_jamo(std::string& text, uint32_t c) {
  const uint32_t index = c - kHangul, tail = index % kTails;
  append_utf8(text, 0x1100 + index / (kVowels * kTails));
  append_utf8(text, 0x1161 + index % (kVowels * kTails) / kTails);
  if (tail != 0) append_utf8(text, 0x11A7 + tail);
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  const CodePoint invalid{lead, 1, false};
  if (lead < 0xC2 || lead > 0xF4 || at + bytes > text.size()) return invalid;
  uint32_t value = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return invalid;
    value = value << 6 | (byte(i) & 0x3F);
  }
  constexpr std::array<uint32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  if (value < kSmallest[bytes] || value > 0x10FFFF || surrogate) return invalid;
  return {value, static_cast<int64_t>(bytes), true};
}

void append_utf8(std::string& text, uint32_t c) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | c >> 6);
    add(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  } else {
    add(0xF0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3F));
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  }
}

bool is_letter(uint32_t c) {
  if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
  return in_ranges(c, detail::kLetters, detail::kLettersCount);
}

bool is_number(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return in_ranges(c, detail::kNumbers, detail::kNumbersCount);
}

bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_punctuation(uint32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && !is_letter(c) && !is_number(c);
  return in_ranges(c, detail::kPunctuation, detail::kPunctuationCount);
}

bool is_control(uint32_t c) {
  return in_ranges(c, detail::kControl, detail::kControlCount);
}

bool is_ideograph(uint32_t c) {
  return in_any(c, {{0x4E00, 0x9FFF},
                    {0x3400, 0x4DBF},
                    {0x20000, 0x2A6DF},
                    {0x2A700, 0x2B73F},
                    {0x2B740, 0x2B81F},
                    {0x2B920, 0x2CEAF},  // extension E begins at 2B820; Hugging Face's begins here
                    {0xF900, 0xFAFF},
                    {0x2F800, 0x2FA1F}});
}

void append_folded(std::string& text, uint32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 0x20 : c);
  } else if (c >= kHangul && c < kHangul + kHangulCount) {
    append_jamo(text, c);
  } else if (in_ranges(c, detail::kMarks, detail::kMarksCount)) {
    return;
  } else if (const auto found = folds().find(c); found != folds().end()) {
    text += found->second;
  } else {
    append_utf8(text, c);
  }
}

}  // namespace tarn::data
