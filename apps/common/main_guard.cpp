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

#include <signal.h>

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
  std::fprintf(stderr, "%s: error: %s\n", program, message);
  write_error_file(message);
  if (code == 2) std::fprintf(stderr, "Try '%s --help'.\n", program);
  return code;
}

}  // namespace

int main_guard(const char* program, const std::function<int()>& body) {
  signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of write(), not a kill
  try {
    const int code = body();
    std::cout.flush();
    if (std::fflush(stdout) != 0 || !std::cout) {
      return fail(program,
                  (std::string("cannot write to standard output: ") + std::strerror(errno)).c_str(),
                  1);
    }
    return code;
  } catch (const UsageError& error) {
    return fail(program, error.what(), 2);
  } catch (const std::bad_alloc&) {
    return fail(program, "out of memory", 1);
  } catch (const std::exception& error) {
    return fail(program, error.what(), 1);
  } catch (...) {
    return fail(program, "an unknown exception", 1);
  }
}

}  // namespace tarn::apps
