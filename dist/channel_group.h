// channel_group.h - ChannelGroup: a ProcessGroup over any Channel.
//
// Each group has one communication thread that runs its collectives in the order of calls, so that
// they go on while the caller computes. Sends and receives start in the calling thread
// (point_to_point.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tarn/dist/channel.h"
#include "tarn/dist/collectives.h"
#include "tarn/dist/group.h"
#include "tarn/dist/recorder.h"

namespace tarn::dist {

/// Runs `body`, whose waits on a channel end at `limit`: their TimeoutError says so.
template <class F>
void within(Millis limit, F body) {
  try {
    body();
  } catch (const TimeoutError& error) {
    throw TimeoutError(std::string(error.what()) + " within " + duration_text(limit));
  }
}

/// What a group and its Works share: the channel, and why it is dead, if it is.
class Link {
 public:
  Link(ChannelPtr channel, int rank, int size, GroupOptions options)
      : channel_(std::move(channel)), rank_(rank), size_(size), options_(std::move(options)) {}

  Channel& channel() { return *channel_; }
  FlightRecorder& recorder() { return recorder_; }
  int rank() const { return rank_; }
  const GroupOptions& options() const { return options_; }
  /// Throws DistError if an earlier operation failed.
  void check_alive() const;
  /// Marks the group dead, closes the channel and tells the others. The first reason stays.
  void fail(const std::string& reason);
  /// Runs `body` as `operation` ("all_reduce #5 ([10] f32, sum)"): what it throws gets the
  /// operation, group and rank in front, and the group dies.
  template <class F>
  void guard(const std::string& operation, F body) {
    try {
      check_alive();
      body();
    } catch (const std::exception& error) {
      const std::string where = place(operation);
      fail(where + error.what());
      rethrow_with(where);
    }
  }
  /// The limit of the next operation: the first may take longer.
  Millis next_timeout() {
    const Millis limit = started_.exchange(true) ? options_.timeout : options_.start_timeout;
    return lost_ ? 2 * limit : limit;
  }
  /// This rank has dropped something (TARN_FAULT): those who miss it reach their limits first.
  void lose() { lost_ = true; }

 private:
  std::string place(const std::string& operation) const;

  ChannelPtr channel_;
  int rank_, size_;
  GroupOptions options_;
  FlightRecorder recorder_;
  std::atomic<bool> started_{false}, lost_{false};
  mutable std::mutex mutex_;
  std::string dead_;  // why, once it is
};

class Messages;  // point_to_point.h

class ChannelGroup final : public ProcessGroup {
 public:
  /// transport: its name, a literal. Uses `factory` for this group's channel and for subgroups'.
  ChannelGroup(const char* transport, ChannelFactory factory, int rank, int size,
               GroupOptions options);
  /// Lets what is queued end (or fail at its limit).
  ~ChannelGroup() override;

  const char* transport() const override { return transport_; }
  void abort(const std::string& reason) override;

 protected:
  WorkPtr submit(Collective collective) override;
  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks, int rank,
                                              GroupOptions options) override;

 private:
  class Job;
  void run();

  const char* transport_;
  ChannelFactory factory_;
  std::shared_ptr<Link> link_;
  Collectives collectives_;
  std::unique_ptr<Messages> messages_;
  uint64_t sequence_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tarn::dist
