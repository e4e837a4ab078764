// fault.h - faults on demand, to see what a job does when a rank fails.
//
//   TARN_FAULT="rank=1 at=20 do=kill"       rank 1 dies as it calls its 20th collective or message
//                                           (of any group, over any transport)
//                          do=exit          ends with exit code 3
//                          do=hang          stops for ever, as at a breakpoint
//                          do=delay:500     is 500 ms late
//                          do=drop          goes on as if it were done, but nothing was sent: the
//                                           others wait for it until their limit
//   TARN_FAULT="rank=1 every=10 do=delay:5" again and again
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tarn::dist {

struct Fault {
  enum class Kind : uint8_t { kKill, kExit, kHang, kDelay, kDrop };
  int rank = 0;
  int64_t at = 0, every = 0;  // one of them is positive
  Kind kind = Kind::kKill;
  int64_t delay_ms = 0;
};

/// Reads the form above. Throws ValueError that says what is wrong with it.
Fault parse_fault(const std::string& text);
/// Called by each call of a collective or message, in the calling thread: does what TARN_FAULT
/// says. rank: this process's in the group; where the launcher gave it a number, that one counts.
/// True: the call is to be dropped.
[[nodiscard]] bool maybe_fail(int rank);

}  // namespace tarn::dist
