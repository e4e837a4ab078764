// nccl_group_queue.cpp - enqueues collectives, watches them, ends the group when one fails.
#ifdef TARN_HAVE_NCCL

#include "tarn/dist/nccl_group_queue.h"

#include <algorithm>
#include <map>

#include <pthread.h>

#include "tarn/core/capture.h"
#include "tarn/core/transfer.h"
#include "tarn/dist/nccl_group_calls.h"

namespace tarn::dist {
namespace {

constexpr Millis kBusyLook{2}, kIdleLook{600};  // of the thread, with and without work under way
constexpr Millis kStoreLook{100};               // for news of other ranks, with work under way
constexpr Millis kLastLook{50};                 // at a collective, when something has gone wrong
constexpr Millis kSuspicion{250};  // what a rank did before it went is done by then, or never

// Streams outlive groups: the allocator still refers to those that used its memory.
class StreamPool {
 public:
  Stream take(Device device) {
    const std::lock_guard lock(mutex_);
    auto& free = free_[device.index];
    constexpr int kHigh = -1;  // priority: kernels that others wait for go first
    if (free.empty()) return backend(device.type).create_stream(device.index, kHigh);
    const Stream stream = free.back();
    free.pop_back();
    return stream;
  }
  void give(Stream stream) {
    const std::lock_guard lock(mutex_);
    free_[stream.device.index].push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<Stream>> free_;
};
StreamPool& stream_pool() {
  static StreamPool& pool = *new StreamPool;
  return pool;
}

std::string rank_name(int rank) {
  return "rank " + std::to_string(rank);
}

[[noreturn]] void throw_left(int rank) {
  throw PeerError(rank, rank_name(rank) + " is gone: it left the group");
}

int place_of(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

NcclQueue::NcclQueue(std::shared_ptr<NcclState> state, std::string name, std::vector<int> ranks)
    : state_(std::move(state)),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      comm_(state_->options.device.index, place_of(state_->rank, ranks_),
            static_cast<int>(ranks_.size())),
      stream_(stream_pool().take(state_->options.device)),
      endings_(ranks_.size()) {}

void NcclQueue::start() {
  thread_ = std::thread([this] { run(); });
}

NcclQueue::~NcclQueue() {
  drain();
  comm_.abort();
  stream_pool().give(stream_);
}

void NcclQueue::drain() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NcclQueue::leave(Clock::time_point deadline) noexcept {
  auto next = Clock::now() + kStoreLook;
  comm_.finish(deadline, [&] {
    if (Clock::now() < next) return false;
    next = Clock::now() + kStoreLook;
    return others_gone();
  });
}

// True if one of them will not leave in good order any more.
bool NcclQueue::others_gone() {
  if (!state_->notes->dead(ranks_).empty()) return true;
  return std::any_of(ranks_.begin(), ranks_.end(), [&](int rank) {
    if (rank == state_->rank) return false;
    const auto ending = state_->notes->ending(rank);
    return ending && ending->failed;
  });
}

// A value of the store, with an eye on the ranks that should bring it.
std::string NcclQueue::await(const std::string& key, Clock::time_point deadline) {
  for (;;) {
    const Millis left = time_left(deadline);
    if (auto value = state_->store->wait_for(key, std::min(kStoreLook, left))) return *value;
    state_->check_alive();
    check_others(0);
    TARN_CHECK_AS(TimeoutError, left > Millis(0), "the other ranks did not come");
  }
}

void NcclQueue::connect(Clock::time_point deadline) {
  const std::string key = "group " + state_->options.group.name + "/nccl/id/" + name_;
  std::string id;
  if (comm_.rank() == 0) {
    try {
      id = nccl_unique_id(comm_.device());
    } catch (const DistError& error) {
      state_->store->set(key, std::string("!") + error.what());
      throw;
    }
    state_->store->set(key, ":" + id);
    // Before NCCL waits, so that who does not come is known by name.
    for (int r = 1; r < comm_.size(); ++r) await(key + "/" + std::to_string(r), deadline);
  } else {
    id = await(key, deadline);
    TARN_CHECK_AS(DistError, id[0] == ':', rank_name(ranks_[0]), " failed: ", id.substr(1));
    id.erase(0, 1);
    state_->store->set(key + "/" + std::to_string(comm_.rank()), "here");
  }
  comm_.connect(id, deadline);
  connected_ = true;
}

// Throws PeerError unless all ranks of the queue are about to call the same.
void NcclQueue::check_calls(const Header& mine, Clock::time_point deadline) {
  const std::string prefix = "group " + state_->options.group.name + "/nccl/call/" + name_ + "/";
  const auto key = [&](uint64_t call, int rank) {
    return prefix + std::to_string(call) + "/" + std::to_string(rank);
  };
  state_->store->set(key(mine.sequence, state_->rank), mine.bytes_of());
  for (int rank : ranks_) {
    if (rank == state_->rank) continue;
    mine.check(Header::from_bytes(await(key(mine.sequence, rank), deadline)), rank);
  }
  // All have come here, so all have read the last one.
  if (mine.sequence > 1) state_->store->erase(key(mine.sequence - 1, state_->rank));
}

WorkPtr NcclQueue::add(Collective c) {
  const Device device = state_->options.device;
  TARN_CHECK_AS(UnsupportedError, !tarn::detail::is_capturing(current_stream(device)),
                kind_name(c.kind), ": cannot be recorded into a CUDA graph, since the group's own ",
                "thread calls NCCL; call it outside of the captured step");
  for (const auto* tensors : {&c.inputs, &c.outputs}) {
    for (const Tensor& t : *tensors) {
      if (t.numel() > 0) record_stream(t, stream_);
    }
  }
  WorkRef work;
  {
    const std::lock_guard lock(mutex_);
    work = std::make_shared<NcclWork>(state_, std::move(c), ++number_);
    if (name_.empty()) {
      state_->last = number_;
      state_->recorder.queued(number_, work->name_);
    }
    queue_.push_back(work);
  }
  changed_.notify_one();
  return work;
}

void NcclQueue::run() {
  ::pthread_setname_np(::pthread_self(), "tarn-nccl");
  for (;;) {
    WorkRef work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, running_.empty() ? kIdleLook : kBusyLook,
                        [&] { return !queue_.empty() || (stop_ && running_.empty()); });
      if (!queue_.empty()) {
        work = std::move(queue_.front());
        queue_.pop_front();
      } else if (stop_ && running_.empty()) {
        return;
      }
    }
    if (work) enqueue(work);
    look();
  }
}

void NcclQueue::enqueue(const WorkRef& work) {
  const bool dropped = work->collective_.lost, held = lost_ && !dropped;
  if (dropped) lost_ = state_->lost = true;
  if (!lost_) last_ = work->header_;
  running_.push_back(work);
  try {
    state_->check_alive();
    work->limit_ = state_->next_timeout();
    work->deadline_ = Clock::now() + work->limit_;
    if (name_.empty()) state_->recorder.changed(work->number_, FlightRecorder::State::kRunning);
    if (held) await("group " + state_->options.group.name + "/nccl/never", work->deadline_);
    if (!connected_ && !dropped) connect(work->deadline_);
    if (state_->options.check_calls && !dropped) check_calls(work->header_, work->deadline_);
    const StreamGuard guard(stream_);
    work->ready_.wait(stream_);
    work->start_.record(stream_);
    if (!dropped) run_collective(comm_, work->collective_, work->deadline_);
    work->done_.record(stream_);
    const std::lock_guard lock(work->mutex_);
    work->collective_ = {};
    work->phase_ = NcclWork::Phase::kEnqueued;
    work->changed_.notify_all();
  } catch (const NcclError& error) {
    explain(*work, error.what());
  } catch (const TimeoutError&) {
    explain(*work, "");
  } catch (const std::exception&) {
    fail(*work, std::current_exception());
  }
}

// The works that are done, and whether the oldest of the others can be done at all.
void NcclQueue::look() {
  while (!running_.empty()) {
    const WorkRef work = running_.front();
    try {
      const bool done = work->done_.query();
      if (!state_->dead().empty()) return end_all();
      if (!done) {
        comm_.check();
        check_others(work->number_);
        if (Clock::now() >= work->deadline_) explain(*work, "");
        return;
      }
    } catch (const NcclError& error) {
      if (!finishes(*work)) return explain(*work, error.what());
    } catch (const PeerError&) {
      if (!finishes(*work)) return fail(*work, std::current_exception());
    } catch (const std::exception&) {
      return fail(*work, std::current_exception());
    }
    end_front();
  }
  answer_news();
}

// That another rank is gone may come to light before this one sees that it has its result.
bool NcclQueue::finishes(NcclWork& work) {
  const auto deadline = Clock::now() + kLastLook;
  try {
    for (Pause pause; Clock::now() < deadline; pause()) {
      const bool done = work.done_.query();
      if (!state_->dead().empty()) return false;  // an abort ends the kernel too
      if (done) return true;
    }
  } catch (const Error&) {  // the device is lost
  }
  return false;
}

void NcclQueue::end_front() {
  const WorkRef work = std::move(running_.front());
  running_.pop_front();
  if (name_.empty()) state_->recorder.changed(work->number_, FlightRecorder::State::kDone);
  work->end(nullptr);
  suspect_since_ = {};
  // The time of a collective begins when those before it are done.
  if (!running_.empty()) running_.front()->deadline_ = Clock::now() + running_.front()->limit_;
}

// Reads what other ranks have written, and says where this one is.
void NcclQueue::answer_news() {
  if (Clock::now() < next_look_) return;
  next_look_ = Clock::now() + kStoreLook;
  const int64_t news = state_->notes->news();
  if (std::exchange(news_, news) == news) return;
  if (last_.sequence > 0) state_->notes->publish(name_, last_, false);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i] != state_->rank) endings_[i] = state_->notes->ending(ranks_[i]);
  }
}

// Throws PeerError if collective `number` waits for a rank that is gone.
void NcclQueue::check_others(uint64_t number) {
  answer_news();
  const std::vector<int> dead = state_->notes->dead(ranks_);
  int left = -1;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!endings_[i]) continue;
    if (endings_[i]->failed) {
      throw PeerError(ranks_[i],
                      rank_name(ranks_[i]) + " closed its connection: " + endings_[i]->text);
    }
    left = ranks_[i];
    if (name_.empty() && endings_[i]->last < number) throw_left(left);
  }
  if (left < 0 && dead.empty()) return;
  // It may have done its part before.
  if (suspect_since_ == Clock::time_point{}) suspect_since_ = Clock::now();
  if (Clock::now() - suspect_since_ < kSuspicion) return;
  if (left >= 0) throw_left(left);
  Notes::throw_dead(dead);
}

// said: by NCCL; "": nothing, the limit has passed.
void NcclQueue::explain(NcclWork& work, const std::string& said) {
  if (!state_->dead().empty()) return end_all();
  fail(work, state_->notes->explain(name_, ranks_, work.header_, said, work.limit_));
}

void NcclQueue::fail(NcclWork& work, std::exception_ptr error) {
  while (running_.front().get() != &work && finishes(*running_.front())) end_front();
  if (!state_->dead().empty()) return end_all();
  const std::string where = work.where();
  std::string text;
  try {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception&) {
      rethrow_with(where);
    }
  } catch (const std::exception& named) {
    text = named.what();
    error = std::current_exception();
  }
  if (name_.empty()) state_->recorder.changed(work.number_, FlightRecorder::State::kFailed);
  const bool first = state_->die(text);  // writes the record, before anybody who waits goes on
  work.end(error);
  end_all();
  if (first) state_->abort_queues();
}

// The group is dead: so is all that is under way or queued.
void NcclQueue::end_all() {
  {
    const std::lock_guard lock(mutex_);
    running_.insert(running_.end(), queue_.begin(), queue_.end());
    queue_.clear();
  }
  const std::string reason = state_->dead();
  for (const WorkRef& work : std::exchange(running_, {})) {
    work->end(std::make_exception_ptr(DistError(work->where() + ended_earlier(reason))));
  }
}

}  // namespace tarn::dist

#endif  // TARN_HAVE_NCCL
