// terminal.cpp - what the terminal behind a file descriptor can do.
#include "tarn/apps/common/terminal.h"

#include <cstdlib>
#include <cstring>

#include <sys/ioctl.h>
#include <unistd.h>

namespace tarn::apps {

bool is_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) && !(term && std::strcmp(term, "dumb") == 0);
}

bool wants_color(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return is_terminal(fd) && !(no_color && *no_color);
}

int64_t terminal_width(int fd, int64_t fallback) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int64_t width = columns ? std::atoll(columns) : 0;
  return width > 0 ? width : fallback;
}

}  // namespace tarn::apps
