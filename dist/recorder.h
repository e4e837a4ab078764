// recorder.h - FlightRecorder: the last collectives of a group, to be read after a failure.
//
// Where TARN_FLIGHT_DIR names a folder (tarn-run sets it), a group that dies writes
// flight-<group>-rank-<RANK>.txt there: a line about the group and the reason, then one per
// collective, oldest first, fields divided by tabs:
//   number  state (queued, running, done, failed)  start  end (ms since 1970, 0: not yet) operation
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

namespace tarn::dist {

/// Thread safety: every method may be called from any thread.
class FlightRecorder {
 public:
  static constexpr size_t kMost = 1000;

  enum class State : uint8_t { kQueued, kRunning, kDone, kFailed };
  /// `operation`: "all_reduce #5 ([10] f32, sum)".
  void queued(uint64_t number, std::string operation);
  void changed(uint64_t number, State state);
  /// All lines but the first.
  std::string text() const;
  /// Writes the file, if a folder is named; what goes wrong is ignored, since it is about a
  /// failure.
  void write(const std::string& group, int rank, int size, const std::string& reason) const;

 private:
  struct Entry {
    uint64_t number;
    State state;
    int64_t start_ms, end_ms;
    std::string operation;
  };
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
};

}  // namespace tarn::dist
