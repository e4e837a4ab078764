// text.cpp - string helpers the apps share.
#include "tarn/apps/common/text.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace tarn::apps {

std::string format(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  va_list again;
  va_copy(again, args);
  const int size = std::vsnprintf(nullptr, 0, pattern, args);
  va_end(args);
  std::string text(static_cast<size_t>(std::max(size, 0)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  for (int digits = 1; digits < 17; ++digits) {
    std::string text = format("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) {
      // Whole numbers read better without an exponent: 60000, not 6e+04.
      const bool whole = std::fabs(value) < 1e15 && value == std::floor(value);
      return whole ? format("%.0f", value) : text;
    }
  }
  return format("%.17g", value);
}

double unsigned_nan(double value) {
  return std::isnan(value) ? std::nan("") : value;
}

std::string clock_text(double seconds) {
  const auto total = static_cast<int64_t>(std::max(seconds, 0.0));
  const auto hours = static_cast<long>(total / 3600);
  const int minutes = static_cast<int>(total / 60 % 60), rest = static_cast<int>(total % 60);
  return hours > 0 ? format("%ld:%02d:%02d", hours, minutes, rest)
                   : format("%02d:%02d", minutes, rest);
}

std::string timedelta_text(double seconds) {
  const auto total = static_cast<int64_t>(std::max(seconds, 0.0));
  const auto days = static_cast<long>(total / 86400);
  std::string text = days == 0   ? ""
                     : days == 1 ? std::string("1 day, ")
                                 : format("%ld days, ", days);
  return text + format("%d:%02d:%02d", static_cast<int>(total / 3600 % 24),
                       static_cast<int>(total / 60 % 60), static_cast<int>(total % 60));
}

int64_t display_width(std::string_view text) {
  int64_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {  // an ANSI sequence ends at its letter
      while (i < text.size() && !std::isalpha(static_cast<unsigned char>(text[i]))) ++i;
      continue;
    }
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) ++width;  // not a continuation byte
  }
  return width;
}

std::vector<std::string> wrap(std::string_view text, int64_t width) {
  std::vector<std::string> lines(1);
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    std::string& line = lines.back();
    if (!line.empty() && display_width(line) + 1 + display_width(word) > width) {
      lines.emplace_back(word);
    } else {
      if (!line.empty() && !word.empty()) line += ' ';
      line += word;
    }
    if (end < text.size() && text[end] == '\n') lines.emplace_back();
    at = end + 1;
  }
  return lines;
}

namespace {

// Optimal string alignment distance: insert, delete, replace, swap neighbours.
int64_t edit_distance(std::string_view a, std::string_view b) {
  const size_t n = a.size(), m = b.size();
  std::vector<std::vector<int64_t>> d(n + 1, std::vector<int64_t>(m + 1));
  for (size_t i = 0; i <= n; ++i) d[i][0] = static_cast<int64_t>(i);
  for (size_t j = 0; j <= m; ++j) d[0][j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= n; ++i) {
    for (size_t j = 1; j <= m; ++j) {
      const int64_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[n][m];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  // At least one letter must stay: 'C' is no misspelt 'A'.
  const auto length = static_cast<int64_t>(word.size());
  int64_t best_distance = std::min(std::max<int64_t>(2, length / 3) + 1, length);
  for (const std::string& candidate : candidates) {
    const int64_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string shell_quote(std::string_view argument) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("-_=./:,+@%").find(c) != std::string_view::npos;
  };
  if (!argument.empty() && std::all_of(argument.begin(), argument.end(), plain)) {
    return std::string(argument);
  }
  std::string quoted = "'";
  for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace tarn::apps
