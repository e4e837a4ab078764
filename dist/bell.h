// bell.h - futexes, and the bell that tells a rank that messages have come.
#pragma once

#include <atomic>
#include <cstdint>

#include "tarn/dist/error.h"

namespace tarn::dist {

/// Sleeps until woken or the limit, unless the value has changed already.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, Millis limit);
void futex_wake(std::atomic<uint32_t>& word);

/// One per rank, in memory that all ranks reach; zero is the right start. The rank's own thread
/// sleeps on it, and receives for those who do not wait. Nothing is missed: a sender posts its
/// message and then looks at `unattended`; a receiver adds to that and then looks for the message.
struct alignas(64) Bell {
  std::atomic<uint32_t> rung{0};        // a futex
  std::atomic<uint32_t> unattended{0};  // receives that nobody waits for

  void ring() {
    rung.fetch_add(1);
    futex_wake(rung);
  }
  /// By a sender: where every receive is waited for, nobody has to be woken.
  void message_came() {
    if (unattended.load() > 0) ring();
  }
};

}  // namespace tarn::dist
