// interrupt.cpp - Ctrl-C, SIGTERM and SIGHUP as a flag that training loops poll.
#include "tarn/apps/common/interrupt.h"

#include <cerrno>
#include <string_view>

#include <time.h>
#include <unistd.h>

namespace tarn::apps {
namespace {

// What a signal handler touches; only it writes the time.
volatile sig_atomic_t g_signal = 0, g_reader_gone = 0;
volatile time_t g_when = 0;

// A terminal that closes hangs up twice: for itself and by its shell. Every write to a reader that
// is gone is a SIGPIPE, of `... | tee log` too, which the same Ctrl-C has ended. timeout(1) and
// managers of services send SIGTERM to a process and to its group, and a launcher passes it on.
bool is_echo(int number, time_t now) {
  return number == SIGHUP || number == SIGPIPE ||
         (number == SIGTERM && now - g_when <= kEchoSeconds);
}

void handle(int number) {
  if (number == SIGPIPE) g_reader_gone = 1;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (g_signal != 0 && is_echo(number, now.tv_sec)) return;
  if (g_signal != 0) _exit(128 + number);
  g_when = now.tv_sec;
  g_signal = number;
  const int saved = errno;
  constexpr std::string_view kText =
      "\nstopping after this step and saving; press Ctrl-C again to end at once\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
  errno = saved;
}

}  // namespace

Interrupt::Interrupt() {
  g_signal = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;  // reads and writes under way go on
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
  sigaction(SIGPIPE, &action, &old_pipe_);
  sigaction(SIGHUP, nullptr, &old_hup_);
  if (old_hup_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // but for nohup
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGHUP, &old_hup_, nullptr);
  // What is said at the end of a run that was stopped must not end it in another way.
  if (g_signal == 0) sigaction(SIGPIPE, &old_pipe_, nullptr);
}

bool reader_is_gone() {
  return g_reader_gone != 0;
}

bool Interrupt::requested() const {
  return g_signal != 0;
}

int Interrupt::signal() const {
  return g_signal;
}

}  // namespace tarn::apps
