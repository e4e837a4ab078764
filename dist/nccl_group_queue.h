// nccl_group_queue.h - collectives on one communicator: a stream, and a thread that enqueues them,
// watches them, and ends the group when one fails.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tarn/core/backend.h"
#include "tarn/dist/nccl_group.h"
#include "tarn/dist/nccl_group_api.h"
#include "tarn/dist/nccl_group_notes.h"
#include "tarn/dist/recorder.h"

namespace tarn::dist {

class NcclQueue;

/// What a group, its queues and its Works share.
struct NcclState : std::enable_shared_from_this<NcclState> {
  int rank = 0, size = 1;
  NcclOptions options;
  std::shared_ptr<Store> store;
  std::unique_ptr<Notes> notes;
  FlightRecorder recorder;
  std::atomic<bool> started{false};
  std::atomic<bool> lost{false};  // something was dropped (TARN_FAULT): others reach limits first
  std::atomic<uint64_t> last{0};  // number of the last collective

  /// The limit of the next operation: the first may take longer.
  Millis next_timeout() {
    const Millis limit =
        started.exchange(true) ? options.group.timeout : options.group.start_timeout;
    return lost ? 2 * limit + kGrace : limit;
  }
  /// Why the group is dead; "" if it is not.
  std::string dead();
  void check_alive();
  /// Marks the group dead, writes the record and tells the others. False if it was dead before:
  /// the first reason stays.
  bool die(const std::string& reason);
  /// Ends what is under way on the GPU. REQUIRES: dead. Whoever waits for a work must have been
  /// woken, or be woken by another thread: this may take long.
  void abort_queues();
  /// Both.
  void fail(const std::string& reason);
  void add(const std::shared_ptr<NcclQueue>& queue);
  /// Makes the group known to the others of the process.
  void enter();

 private:
  void fail_neighbours();

  std::mutex mutex_;
  std::string dead_;
  std::vector<std::weak_ptr<NcclQueue>> queues_;
};

/// One collective, or one message.
class NcclWork final : public Work {
 public:
  NcclWork(std::shared_ptr<NcclState> state, Collective collective, uint64_t number);

  void wait() override;
  void wait(Millis limit) override;
  bool test() override;
  double seconds() override;

 private:
  friend class NcclQueue;
  enum class Phase { kQueued, kEnqueued, kEnded };

  // "all_reduce #5 ([10] f32, sum) on rank 0 of 2 in group world: ".
  std::string where() const;
  // True once it is over; throws what went wrong.
  bool over();
  void end(std::exception_ptr error);

  std::shared_ptr<NcclState> state_;
  Collective collective_;  // let go when it is enqueued
  uint64_t number_;
  std::string name_;
  Header header_;
  bool host_waits_;
  Event ready_, start_, done_;
  Clock::time_point deadline_{};
  Millis limit_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kQueued;
  std::exception_ptr error_;
};

class NcclQueue {
 public:
  /// ranks: of the group, in the communicator's order. name: "" for the collectives; else that of
  /// a direction, the same on both sides.
  NcclQueue(std::shared_ptr<NcclState> state, std::string name, std::vector<int> ranks);
  ~NcclQueue();
  NcclQueue(const NcclQueue&) = delete;

  /// Meets the other ranks, before start(); else the first work does so.
  void connect(Clock::time_point deadline);
  void start();
  WorkPtr add(Collective c);
  /// From any thread; what is under way fails then.
  void abort() noexcept { comm_.abort(); }
  /// Lets what is queued end, or fail at its limit.
  void drain();
  /// Leaves the communicator, as the other ranks do by the deadline. REQUIRES: drained.
  void leave(Clock::time_point deadline) noexcept;

 private:
  using WorkRef = std::shared_ptr<NcclWork>;

  std::string await(const std::string& key, Clock::time_point deadline);
  void check_calls(const Header& mine, Clock::time_point deadline);
  void run();
  void enqueue(const WorkRef& work);
  void look();
  bool finishes(NcclWork& work);
  void end_front();
  void check_others(uint64_t number);
  bool others_gone();
  void answer_news();
  void explain(NcclWork& work, const std::string& said);
  void fail(NcclWork& work, std::exception_ptr error);
  void end_all();

  std::shared_ptr<NcclState> state_;
  std::string name_;
  std::vector<int> ranks_;
  Communicator comm_;
  Stream stream_;
  bool connected_ = false;
  uint64_t number_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WorkRef> queue_;
  bool stop_ = false;
  // The thread's own:
  std::deque<WorkRef> running_;  // enqueued, not done
  Header last_;
  bool lost_ = false;  // a work was dropped: what comes after it would arrive in its place
  int64_t news_ = 0;
  Clock::time_point next_look_{}, suspect_since_{};
  std::vector<std::optional<Ending>> endings_;  // by place in ranks_
  std::thread thread_;
};

}  // namespace tarn::dist
