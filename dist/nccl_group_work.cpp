// nccl_group_work.cpp - one collective under way over NCCL, and the state that all of them share.
#ifdef TARN_HAVE_NCCL

#include <algorithm>
#include <future>
#include <optional>

#include "tarn/dist/nccl_group_queue.h"
#include "tarn/dist/waited.h"

namespace tarn::dist {
namespace {

constexpr Millis kAbort{10000};  // to abort a group; longer, and another one is in its way

// Of this process.
class LiveGroups {
 public:
  void add(std::weak_ptr<NcclState> group) {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
    groups_.push_back(std::move(group));
  }
  std::vector<std::shared_ptr<NcclState>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<NcclState>> live;
    for (const auto& weak : groups_) {
      if (auto group = weak.lock()) live.push_back(std::move(group));
    }
    return live;
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<NcclState>> groups_;
};
LiveGroups& live_groups() {
  static LiveGroups& instance = *new LiveGroups;
  return instance;
}

}  // namespace

std::string NcclState::dead() {
  const std::lock_guard lock(mutex_);
  return dead_;
}

void NcclState::check_alive() {
  const std::string reason = dead();
  if (!reason.empty()) throw DistError(ended_earlier(reason));
}

bool NcclState::die(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!dead_.empty()) return false;
    dead_ = reason;
  }
  notes->publish(Ending{.failed = true, .last = last, .text = reason});
  recorder.write(options.group.name, rank, size, reason);
  if (options.cpu) options.cpu->abort(reason);
  return true;
}

// All at the same time: ncclCommAbort frees memory, for which the GPU waits until all its kernels
// are done, those of communicators that were not aborted yet among them.
void NcclState::abort_queues() {
  std::vector<std::future<void>> aborts;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& weak : queues_) {
      const auto queue = weak.lock();
      if (queue) aborts.push_back(std::async(std::launch::async, [queue] { queue->abort(); }));
    }
  }
  const auto deadline = Clock::now() + std::min(kAbort, options.group.timeout);
  for (const auto& abort : aborts) {
    if (abort.wait_until(deadline) == std::future_status::ready) continue;
    fail_neighbours();
    break;
  }
}

// The groups of this process on the same GPU: kernels of theirs keep the aborts of this one from
// ending, and those may keep their threads from seeing that they wait for the same lost rank.
void NcclState::fail_neighbours() {
  const std::string reason = "group " + options.group.name + " on the same GPU ended (" + dead() +
                             "), which takes until this group's collectives end";
  std::vector<std::future<void>> fails;
  for (const auto& other : live_groups().all()) {
    if (other.get() == this || !(other->options.device == options.device)) continue;
    fails.push_back(std::async(std::launch::async, [=] { other->fail(reason); }));
  }
}

void NcclState::enter() {
  live_groups().add(weak_from_this());
}

void NcclState::fail(const std::string& reason) {
  if (die(reason)) abort_queues();
}

void NcclState::add(const std::shared_ptr<NcclQueue>& queue) {
  const std::lock_guard lock(mutex_);
  queues_.push_back(queue);
}

NcclWork::NcclWork(std::shared_ptr<NcclState> state, Collective c, uint64_t number)
    : state_(std::move(state)),
      collective_(std::move(c)),
      number_(number),
      header_(header_of(collective_, number)),
      host_waits_(state_->options.blocking_wait || collective_.kind == CollectiveKind::kBarrier),
      ready_(state_->options.device),
      start_(state_->options.device, true),
      done_(state_->options.device, true) {
  name_ = kind_name(collective_.kind);
  const std::string about = collective_.describe();
  if (collective_.kind == CollectiveKind::kSend || collective_.kind == CollectiveKind::kReceive) {
    name_ += " (" + about + ", tag " + std::to_string(collective_.tag) + ")";
    header_.kind = CollectiveKind::kSend;  // the two sides compare
    header_.root = -1;
    header_.bytes = std::exchange(header_.total, 0);
  } else {
    name_ += " #" + std::to_string(number) + (about.empty() ? "" : " (" + about + ")");
  }
  ready_.record(current_stream(state_->options.device));
}

std::string NcclWork::where() const {
  return name_ + " on rank " + std::to_string(state_->rank) + " of " +
         std::to_string(state_->size) + " in group " + state_->options.group.name + ": ";
}

bool NcclWork::over() {
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    if (phase_ != Phase::kEnqueued) return phase_ == Phase::kEnded;
  }
  // An abort ends the kernel too; then the queue's thread says what became of it.
  return done_.query() && state_->dead().empty();
}

void NcclWork::end(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kEnded) return;
  phase_ = Phase::kEnded;
  error_ = std::move(error);
  collective_ = {};
  changed_.notify_all();
}

void NcclWork::wait() {
  // Of a collective the stream waits; that the host may wait as well must not count twice.
  std::optional<WaitClock> clock;
  if (header_.kind == CollectiveKind::kBarrier) clock.emplace();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return phase_ != Phase::kQueued; });  // the queue's limits end it
    if (error_) std::rethrow_exception(error_);
  }
  if (!host_waits_) return done_.wait(current_stream(state_->options.device));
  for (Pause pause; !over();) pause();
}

void NcclWork::wait(Millis limit) {
  const WaitClock clock;
  const auto deadline = Clock::now() + limit;
  for (Pause pause; !over(); pause()) {
    TARN_CHECK_AS(TimeoutError, Clock::now() < deadline, name_, ": not done after ",
                  duration_text(limit), "; it goes on");
  }
}

bool NcclWork::test() {
  try {
    return over();
  } catch (const std::exception&) {  // wait() tells
    return true;
  }
}

double NcclWork::seconds() {
  {
    const std::lock_guard lock(mutex_);
    if (error_ || phase_ == Phase::kQueued) return 0;
  }
  return done_.query() ? done_.elapsed_ms_since(start_) / 1000 : 0;
}

}  // namespace tarn::dist

#endif  // TARN_HAVE_NCCL
