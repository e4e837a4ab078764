// waited.h - how long a thread has waited for other ranks.
#pragma once

#include <chrono>

#include "tarn/dist/error.h"

namespace tarn::dist {

namespace detail {
inline thread_local double waited = 0;
}

/// Seconds that this thread has spent in Work::wait so far, for others and for the transport: what
/// it took for a step beyond these it was busy itself. Over NCCL only barriers and waits with a
/// limit count: for the others the stream waits, whether or not the host does too (ReducerStats
/// tells of DDP's).
inline double waited_seconds() {
  return detail::waited;
}

/// Counts its own lifetime as waiting.
class WaitClock {
 public:
  WaitClock() = default;
  ~WaitClock() { detail::waited += std::chrono::duration<double>(Clock::now() - start_).count(); }
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;

 private:
  Clock::time_point start_ = Clock::now();
};

}  // namespace tarn::dist
