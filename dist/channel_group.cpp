// channel_group.cpp - the queue and the thread of a group on a CPU transport.
#include "tarn/dist/channel_group.h"

#include <exception>

#include <pthread.h>

#include "tarn/dist/point_to_point.h"
#include "tarn/dist/waited.h"

namespace tarn::dist {

void Link::check_alive() const {
  std::lock_guard lock(mutex_);
  if (!dead_.empty()) throw DistError(ended_earlier(dead_));
}

void Link::fail(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (!dead_.empty()) return;
    dead_ = reason;
  }
  channel_->close(reason);
  recorder_.write(options_.name, rank_, size_, reason);
}

std::string Link::place(const std::string& operation) const {
  return operation + " on rank " + std::to_string(rank_) + " of " + std::to_string(size_) +
         " in group " + options_.name + ": ";
}

// One collective of the queue.
class ChannelGroup::Job final : public Work {
 public:
  Job(Collective collective, uint64_t sequence)
      : collective_(std::move(collective)), sequence_(sequence) {
    const std::string about = collective_.describe();
    name_ = std::string(kind_name(collective_.kind)) + " #" + std::to_string(sequence);
    if (!about.empty()) name_ += " (" + about + ")";
  }

  const std::string& name() const { return name_; }

  void run(Link& link, Collectives& collectives) {
    std::exception_ptr error;
    const auto start = Clock::now();
    link.recorder().changed(sequence_, FlightRecorder::State::kRunning);
    try {
      link.guard(name_, [&] {
        try {
          if (collective_.lost) return link.lose();
          const Millis limit = link.next_timeout();
          within(limit, [&] { collectives.run(collective_, sequence_, Clock::now() + limit); });
        } catch (...) {
          link.recorder().changed(sequence_,
                                  FlightRecorder::State::kFailed);  // before it is written
          throw;
        }
      });
      link.recorder().changed(sequence_, FlightRecorder::State::kDone);
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard lock(mutex_);
      error_ = error;
      done_ = true;
      seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
      collective_ = {};  // lets go of the tensors
    }
    changed_.notify_all();
  }

  void wait() override {
    const WaitClock clock;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });  // the transport's own limits end it
    if (error_) std::rethrow_exception(error_);
  }

  void wait(Millis limit) override {
    const WaitClock clock;
    std::unique_lock lock(mutex_);
    TARN_CHECK_AS(TimeoutError, changed_.wait_for(lock, limit, [&] { return done_; }), name_,
                  ": not done after ", duration_text(limit), "; it goes on");
    if (error_) std::rethrow_exception(error_);
  }

  bool test() override {
    std::lock_guard lock(mutex_);
    return done_;
  }

  double seconds() override {
    std::lock_guard lock(mutex_);
    return seconds_;
  }

 private:
  Collective collective_;
  uint64_t sequence_;
  std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  double seconds_ = 0;
  std::exception_ptr error_;
};

ChannelGroup::ChannelGroup(const char* transport, ChannelFactory factory, int rank, int size,
                           GroupOptions options)
    : ProcessGroup(rank, size, options),
      transport_(transport),
      factory_(std::move(factory)),
      link_(std::make_shared<Link>(factory_(options.name, rank, size, options.start_timeout), rank,
                                   size, options)),
      collectives_(link_->channel(), rank, size),
      messages_(std::make_unique<Messages>(link_)) {
  thread_ = std::thread([this] { run(); });
}

ChannelGroup::~ChannelGroup() {
  messages_->set_going();  // another rank may have to get one before it comes to a collective
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();  // the channel goes with the last Work
}

void ChannelGroup::abort(const std::string& reason) {
  link_->fail(reason);
}

void ChannelGroup::run() {
  ::pthread_setname_np(::pthread_self(), "tarn-dist");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<Job> job = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    job->run(*link_, collectives_);
    lock.lock();
  }
}

WorkPtr ChannelGroup::submit(Collective c) {
  if (c.kind == CollectiveKind::kSend || c.kind == CollectiveKind::kReceive) {
    return messages_->start(c);
  }
  std::shared_ptr<Job> job;
  {
    std::lock_guard lock(mutex_);
    job = std::make_shared<Job>(std::move(c), ++sequence_);
    link_->recorder().queued(sequence_, job->name());
    queue_.push_back(job);
  }
  changed_.notify_one();
  return job;
}

std::shared_ptr<ProcessGroup> ChannelGroup::make_subgroup(std::span<const int> ranks, int rank,
                                                          GroupOptions options) {
  return std::make_shared<ChannelGroup>(transport_, factory_, rank, static_cast<int>(ranks.size()),
                                        std::move(options));
}

}  // namespace tarn::dist
