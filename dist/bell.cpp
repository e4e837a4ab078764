// bell.cpp - the calls of futexes.
#include "tarn/dist/bell.h"

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tarn::dist {

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, Millis limit) {
  const timespec time{static_cast<time_t>(limit.count() / 1000),
                      static_cast<long>(limit.count() % 1000 * 1000000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tarn::dist
