// point_to_point.h - send and recv over a channel.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "tarn/dist/channel_group.h"

namespace tarn::dist {

class Message;

/// Messages under way: those that are over are let go now and then.
struct PendingMessages {
  using List = std::list<std::shared_ptr<Message>>;
  std::mutex mutex;
  std::condition_variable changed;
  List messages;
};

/// The messages of one group. It holds them, and with them the memory that the transport reads and
/// writes, until they are over, whatever becomes of their Works. A thread looks at those that
/// nobody waits for when their limit has passed: they are through by then, or the group ends.
/// Thread safety: any thread may call any method.
class Messages {
 public:
  explicit Messages(std::shared_ptr<Link> link);
  /// Lets what is under way end (or fail at its limit).
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Starts a send or receive at once, in the calling thread.
  WorkPtr start(const Collective& c);
  /// What is under way goes on without anybody who waits for it.
  void set_going();

 private:
  using Lane = std::tuple<bool, int, uint32_t>;  // it sends, the other rank, the tag
  bool holds_back(const Collective& c);
  void watch();
  Clock::time_point take_late(Clock::time_point now, PendingMessages::List& over,
                              PendingMessages::List& late);

  std::shared_ptr<Link> link_;
  std::shared_ptr<PendingMessages> pending_;
  // Under pending_->mutex:
  Clock::time_point next_look_{};
  bool stop_ = false;
  std::set<Lane> stopped_;  // something was dropped there
  std::thread thread_;      // from the first message on
};

}  // namespace tarn::dist
