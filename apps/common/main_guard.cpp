// main_guard.cpp - runs the body of a program and turns what it throws into a message and exit
// code.
#include "tarn/apps/common/main_guard.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>

#include <signal.h>

#include "tarn/apps/common/options.h"

namespace tarn::apps {
namespace {

int fail(const char* program, const char* message, int code) {
  std::fflush(stdout);  // what was said before comes before the error
  std::cout.flush();
  std::fprintf(stderr, "%s: error: %s\n", program, message);
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
