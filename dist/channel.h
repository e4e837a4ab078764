// channel.h - bytes between the ranks of one group: all that a CPU transport has to provide.
//
// The collectives are written once above it (collectives.h), so local threads and Gloo differ only
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tarn/dist/bell.h"
#include "tarn/dist/error.h"

namespace tarn::dist {

/// One message under way. The memory must stay until wait() has returned or this is destroyed.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Throws TimeoutError at the deadline ("rank 1 did not answer"; within() adds the limit) and
  /// PeerError if the other side is gone; both texts start with the other rank. The channel is of
  /// no use afterwards.
  virtual void wait(Clock::time_point deadline) = 0;
  /// Of a receive, where the channel has a bell: its message is there, wait() only copies it.
  virtual bool ready() { return false; }
};
using TransferPtr = std::unique_ptr<Transfer>;

/// The bit of slots whose messages ring the receiver's bell.
inline constexpr uint64_t kRings = uint64_t{1} << 63;

/// How a long message of a reduction travels: in parts, so that one is added while others are on
/// their way.
struct Pipeline {
  size_t segment = 512 * 1024;  ///< bytes of a part
  size_t depth = 2;             ///< parts that have room at the receiver at a time
};

/// Messages between two ranks are matched by slot, and within a slot in order. A message may be
/// shorter than what the receiver offers, never longer. Thread safety: any thread may call any
/// method; one thread at a time waits for a Transfer.
class Channel {
 public:
  /// Leaves: what was sent still arrives, and later waits for this rank fail.
  virtual ~Channel() = default;
  virtual TransferPtr send(int to, uint64_t slot, const void* data, size_t bytes) = 0;
  virtual TransferPtr receive(int from, uint64_t slot, void* data, size_t capacity) = 0;
  /// What suits it. The same on all ranks.
  virtual Pipeline pipeline() const { return {}; }
  /// This rank's, where a message is received only by a thread that waits for it; null: messages go
  /// on by themselves (Gloo has a thread that receives).
  virtual Bell* bell() { return nullptr; }
  /// Ends all that is under way, here and at the other ranks, which learn the reason.
  virtual void close(const std::string& reason) noexcept = 0;
};
using ChannelPtr = std::unique_ptr<Channel>;

/// Returns when every rank of a new channel has called it. Who has its connections, and serves the
/// store, may have nothing to say and leave at once; to those that still connect that would look
/// like a failure. Throws as Transfer::wait.
void meet(Channel& channel, int rank, int size, Clock::time_point deadline);

/// Makes the channel of a group; `name` is the same on its ranks and used once.
using ChannelFactory =
    std::function<ChannelPtr(const std::string& name, int rank, int size, Millis timeout)>;

}  // namespace tarn::dist
