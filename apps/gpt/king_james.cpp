// king_james.cpp - asking `bible` for everything, and taking the verse numbers off.
#include "tarn/apps/gpt/king_james.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "tarn/core/error.h"

namespace tarn::apps {

std::string without_references(const std::string& printed) {
  std::string text;
  std::string chapter;  // "Ge1" of the line before
  for (size_t at = 0; at < printed.size();) {
    const size_t end = std::min(printed.find('\n', at), printed.size());
    const std::string_view line(printed.data() + at, end - at);
    at = end + 1;
    const size_t colon = line.find(':'), space = line.find(' ');
    if (colon == std::string_view::npos || space == std::string_view::npos || colon > space) {
      continue;
    }
    if (line.substr(0, colon) != chapter) {
      if (!chapter.empty()) text += '\n';
      chapter = line.substr(0, colon);
    }
    text += line.substr(space + 1);
    text += '\n';
  }
  return text;
}

std::string king_james_text() {
  // -f: one verse a line, with its reference in front
  FILE* pipe = popen("bible -f gen1:1-rev22:21 2>/dev/null", "r");
  TARN_CHECK_AS(FileError, pipe, "king-james: cannot start the program bible");
  std::string printed;
  char buffer[1 << 16];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    printed.append(buffer, n);
  }
  const int status = pclose(pipe);
  const std::string text = without_references(printed);
  TARN_CHECK_AS(FileError, status == 0 && !text.empty(),
                "king-james: the program bible is not there; install Debian's package bible-kjv "
                "(apps/quickstart gpt does), or pass --data FILE with a text of yours");
  return text;
}

}  // namespace tarn::apps
