// wrapped.h - long messages in lines that fit a terminal, for the chapters.
#pragma once

#include <string>
#include <string_view>

/// The text cut at spaces into lines of at most `width` columns; all but the first are indented.
inline std::string wrapped(std::string_view text, size_t indent = 2, size_t width = 96) {
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    const size_t end = text.find(' ', 1);  // a word and the space before it
    const std::string_view word = text.substr(0, end);
    if (column > indent && column + word.size() > width) {
      out += '\n' + std::string(indent, ' ');
      out += word.substr(1);
      column = indent + word.size() - 1;
    } else {
      out += word;
      column += word.size();
    }
    text.remove_prefix(word.size());
  }
  return out;
}
