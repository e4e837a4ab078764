// point_to_point.h - send and recv over a channel.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "tarn/dist/channel_group.h"

namespace tarn::dist {

class Message;

/// The messages of one group. It holds them, and with them the memory that the transport reads and
/// writes, until they are over, whatever becomes of their Works. Its thread looks after those that
/// nobody waits for: it receives what has come, at the ring of the channel's bell, so that no
/// sender waits for a rank that does something else first; and it ends what is late, and the group
/// with it. It never waits for another rank. Thread safety: any thread may call any method.
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
  using List = std::list<std::shared_ptr<Message>>;
  using Lane = std::tuple<bool, int, uint32_t>;  // it sends, the other rank, the tag
  bool holds_back(const Collective& c);
  void watch();
  Clock::time_point take_over(List& over);
  List all();

  std::shared_ptr<Link> link_;
  Bell own_bell_;
  Bell& bell_;  // the channel's, if it has one
  std::mutex mutex_;
  // Under mutex_:
  List messages_;  // under way; those that are over are let go now and then
  Clock::time_point next_look_{};
  bool stop_ = false;
  std::set<Lane> stopped_;  // something was dropped there
  std::thread thread_;      // from the first message on
};

}  // namespace tarn::dist
