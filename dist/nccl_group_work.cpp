// nccl_group_work.cpp - one collective under way over NCCL, and the state that all of them share.
#ifdef TARN_HAVE_NCCL

#include <optional>

#include "tarn/dist/nccl_group_queue.h"
#include "tarn/dist/waited.h"

namespace tarn::dist {

std::string NcclState::dead() {
  const std::lock_guard lock(mutex_);
  return dead_;
}

void NcclState::check_alive() {
  const std::string reason = dead();
  if (!reason.empty()) throw DistError(ended_earlier(reason));
}

void NcclState::fail(const std::string& reason) {
  std::vector<std::shared_ptr<NcclQueue>> queues;
  {
    const std::lock_guard lock(mutex_);
    if (!dead_.empty()) return;
    dead_ = reason;
    for (const auto& weak : queues_) {
      if (auto queue = weak.lock()) queues.push_back(std::move(queue));
    }
  }
  notes->publish(Ending{.failed = true, .last = last, .text = reason});
  for (const auto& queue : queues) queue->abort();
  recorder.write(options.group.name, rank, size, reason);
  if (options.cpu) options.cpu->abort(reason);
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
