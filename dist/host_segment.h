// host_segment.h - the memory that the ranks of one host share: letters, futexes and bells.
//
// Invariants: a pair's letters are written by its sender alone; the receiver changes their state.
// `posted` counts letters ever written, `tail` those that are done with, so letters [tail, posted)
// are on their way; letter i stands at i % kLetters.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tarn/dist/bell.h"
#include "tarn/dist/error.h"

namespace tarn::dist {

inline constexpr uint32_t kLetters = 1024;
inline constexpr size_t kReasonBytes = 1000;

enum LetterState : uint32_t { kEmpty, kWaiting, kCopying, kTaken, kWithdrawn };

struct Letter {
  std::atomic<uint32_t> state;
  uint32_t unused;
  uint64_t slot, address, bytes;
};

/// From one rank to another. Futexes: posted (the receiver waits), taken (the sender waits).
struct alignas(64) Pair {
  std::atomic<uint32_t> posted, tail;
  alignas(64) std::atomic<uint32_t> taken;
  alignas(64) Letter letters[kLetters];
};

/// Why a rank has left; written once.
struct alignas(64) Farewell {
  std::atomic<uint32_t> closed;
  char reason[kReasonBytes];
};

/// Maps the segment; zero is the right start for all of it.
class Segment {
 public:
  /// Creates a file for it (rank 0) or opens the one of this path. Throws DistError.
  Segment(const std::string& path, int size, bool create);
  ~Segment();
  Segment(const Segment&) = delete;

  Pair& pair(int from, int to) const { return pairs_[from * size_ + to]; }
  Farewell& farewell(int rank) const { return farewells_[rank]; }
  Bell& bell(int rank) const { return bells_[rank]; }
  /// Takes the name that this process gave away: the memory goes with its last user.
  void unlink();

 private:
  std::string path_;
  int size_;
  bool named_ = false;
  size_t bytes_;
  void* base_;
  Farewell* farewells_;
  Bell* bells_;
  Pair* pairs_;
};

}  // namespace tarn::dist
