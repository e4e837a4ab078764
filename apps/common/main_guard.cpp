// main_guard.cpp - runs the body of a program and turns what it throws into a message and exit
// code.
#include "tarn/apps/common/main_guard.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <iostream>
#include <new>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "tarn/apps/common/interrupt.h"
#include "tarn/apps/common/json_object.h"
#include "tarn/apps/common/options.h"

namespace tarn::apps {
namespace {

// torchrun shows what a rank leaves in this file as the reason of its end: the "traceback".
void write_error_file(const char* message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (!path) return;
  const JsonObject extra = JsonObject()
                               .add("py_callstack", message)
                               .add("timestamp", std::to_string(std::time(nullptr)));
  std::ofstream(path) << JsonObject()
                             .add("message",
                                  JsonObject().add("message", message).add("extraInfo", extra))
                             .text();
}

int fail(const char* program, const char* message, int code) {
  std::fflush(stdout);  // what was said before comes before the error
  std::cout.flush();
  const std::string own = std::string(program) + ": ";  // some messages begin with it
  const char* rest = std::string_view(message).starts_with(own) ? message + own.size() : message;
  std::fprintf(stderr, "%s: error: %s\n", program, rest);
  write_error_file(message);
  if (code == kUsageExitCode) std::fprintf(stderr, "Try '%s --help'.\n", program);
  return code;
}

// A standard stream that was closed leaves its number to the next file that is opened, and what is
// printed would land in there. Reading only, so that writing fails and is noticed.
void occupy_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDONLY);
  }
}

// Why what was printed could not be written; "" if it could. A stream that failed before its last
// flush has nothing left to fail with then.
std::string output_error() {
  errno = 0;
  std::cout.flush();
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) || !std::cout;
  if (!failed || reader_is_gone()) return "";
  const std::string why = errno != 0 ? std::strerror(errno) : "an earlier part was lost";
  return "cannot write to standard output: " + why;
}

}  // namespace

int main_guard(const char* program, const std::function<int()>& body) {
  occupy_standard_streams();
  signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of write(), not a kill
  signal(SIGCHLD, SIG_DFL);  // who inherits it ignored never hears how a child ended
  try {
    const int code = body();
    const std::string error = output_error();
    return error.empty() ? code : fail(program, error.c_str(), 1);
  } catch (const UsageError& error) {
    return fail(program, error.what(), kUsageExitCode);
  } catch (const std::bad_alloc&) {
    return fail(program, "out of memory", 1);
  } catch (const std::exception& error) {
    return fail(program, error.what(), 1);
  } catch (...) {
    return fail(program, "an unknown exception", 1);
  }
}

}  // namespace tarn::apps
