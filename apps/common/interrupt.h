// interrupt.h - Ctrl-C, SIGTERM, SIGHUP and SIGPIPE as a flag that training loops poll.
//
//   Interrupt interrupt;
//   for (...) { if (interrupt.requested()) break; ... }    // then save and return 0
//
// The first signal sets the flag; the second ends the process at once with exit code 128 + signal
// (130 for Ctrl-C). That is but an echo if it is a hang-up or a broken pipe, or a SIGTERM
// that comes within kEchoSeconds of the first. The guard restores the previous handlers. One guard
// at a time.
#pragma once

#include <signal.h>

namespace tarn::apps {

/// Those who end a job often send SIGTERM twice at once.
inline constexpr int kEchoSeconds = 2;

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// True once SIGINT, SIGTERM, SIGHUP or SIGPIPE has come. Cheap enough to ask every step.
  bool requested() const;
  /// The signal that came, or 0.
  int signal() const;

 private:
  struct sigaction old_int_ {};
  struct sigaction old_term_ {};
  struct sigaction old_hup_ {};
  struct sigaction old_pipe_ {};
};

/// True once whoever read this program's output has gone, while there was an Interrupt.
bool reader_is_gone();

}  // namespace tarn::apps
