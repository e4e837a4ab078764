// terminal.h - what the terminal behind a file descriptor can do.
#pragma once

#include <cstdint>

namespace tarn::apps {

/// True if fd is a terminal that can redraw a line (isatty, and TERM is not "dumb").
bool is_terminal(int fd);

/// True if fd is such a terminal and the user has not set NO_COLOR (https://no-color.org).
bool wants_color(int fd);

/// Columns of the terminal behind fd: what it reports, else $COLUMNS, else fallback.
int64_t terminal_width(int fd, int64_t fallback = 80);

}  // namespace tarn::apps
