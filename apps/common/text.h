// text.h - string helpers the apps share: formatting, durations, wrapping, nearest word.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tarn::apps {

/// printf into a string; the compiler checks the arguments.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

/// Shortest decimal text that reads back as the same double: 0.1, 30, 1e-05, nan.
std::string number_text(double value);

/// The value; a nan without its sign, which printf would show: "nan" everywhere, never "-nan".
double unsigned_nan(double value);

/// tqdm's clock: MM:SS, or H:MM:SS from one hour on.
std::string clock_text(double seconds);

/// Python's timedelta: H:MM:SS, from one day on "2 days, H:MM:SS".
std::string timedelta_text(double seconds);

/// Columns a UTF-8 text takes in a terminal (every code point counts as one; ANSI colours as none).
int64_t display_width(std::string_view text);

/// Breaks text at spaces so that no line is longer than width, unless a single word is.
/// Line breaks in the text are kept.
std::vector<std::string> wrap(std::string_view text, int64_t width);

/// The candidate nearest to word by edit distance (a swap of neighbours counts as one edit), or ""
/// if none is near enough to be a likely typing error.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// Quotes an argument so that a POSIX shell reads it back unchanged; plain words stay as they are.
std::string shell_quote(std::string_view argument);

}  // namespace tarn::apps
