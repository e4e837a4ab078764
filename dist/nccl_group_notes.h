// nccl_group_notes.h - what ranks tell each other beside NCCL when something is wrong.
//
// NCCL itself waits without an end and does not say for whom. So a rank whose collective fails
// writes into the store where it is, the others see that there is news and write where they are,
// and each can say who is missing, or who called something else. While all is well this costs one
// small request to the store every now and then.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tarn/dist/collectives.h"
#include "tarn/dist/peer_process.h"
#include "tarn/dist/store.h"

namespace tarn::dist {

/// How long a rank in trouble waits for the others to say where they are; idle ones look once in
/// kIdleLook (nccl_group_queue.cpp).
inline constexpr Millis kGrace{1000};

/// How a rank ended.
struct Ending {
  bool failed = false;    // else: it left when its own work was done
  uint64_t last = 0;      // number of its last collective
  std::string text = {};  // why
};

/// Thread safety: every method may be called from any thread.
class Notes {
 public:
  /// peers: by rank; those that cannot be watched are empty.
  Notes(std::shared_ptr<Store> store, const std::string& group, int rank, int size,
        std::vector<PeerProcess> peers);

  /// Says where this rank is in a queue of collectives. ask: wants to know where the others are.
  void publish(const std::string& queue, const Header& at, bool ask);
  /// Says that this rank is gone.
  void publish(const Ending& ending);
  /// How often somebody has asked or gone so far.
  int64_t news();
  std::optional<Header> read(const std::string& queue, int rank);
  std::optional<Ending> ending(int rank);
  /// Those of `ranks` whose process has ended.
  std::vector<int> dead(const std::vector<int>& ranks) const;
  /// Throws PeerError that names them. REQUIRES: not empty.
  [[noreturn]] static void throw_dead(const std::vector<int>& dead);

  /// The error of a collective that failed on this rank, which is at `mine`. Waits a little for the
  /// others' word. ranks: those in the queue; said: what the transport says of it, "" if it was
  /// only waited for, that long.
  std::exception_ptr explain(const std::string& queue, const std::vector<int>& ranks,
                             const Header& mine, const std::string& said, Millis waited);

 private:
  std::string key(const std::string& what, int rank) const;

  std::shared_ptr<Store> store_;
  std::string prefix_;
  int rank_;
  std::vector<PeerProcess> peers_;
};

}  // namespace tarn::dist
