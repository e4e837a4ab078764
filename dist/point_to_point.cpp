// point_to_point.cpp - send and recv: a header, the data with it or after it.
#include "tarn/dist/point_to_point.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <system_error>

#include <pthread.h>

#include "tarn/dist/waited.h"

namespace tarn::dist {
namespace {

// Between looks of the watching thread: with nothing under way; at a message that is late although
// somebody waits for it, whose wait ends by itself.
constexpr Millis kIdle{3600000}, kLook{50};

}  // namespace

// One send or receive. Held by its Work, and by Messages until it is over.
class Message {
 public:
  /// held: nothing is sent, as what came before it in its lane was dropped.
  Message(std::shared_ptr<Link> link, const Collective& c, bool held)
      : link_(std::move(link)),
        peer_(c.root),
        sends_(c.kind == CollectiveKind::kSend),
        packed_(sends_ ? c.inputs : c.outputs, sends_),
        limit_(link_->next_timeout()),
        deadline_(Clock::now() + limit_) {
    name_ = std::string(kind_name(c.kind)) + " (" + c.describe() + ", tag " +
            std::to_string(c.tag) + ")";
    const Tensor& tensor = (sends_ ? c.inputs : c.outputs)[0];
    header_.kind = CollectiveKind::kSend;
    header_.dtype = static_cast<uint8_t>(tensor.dtype());
    header_.sequence = c.tag;
    header_.bytes = packed_.bytes();
    // The slot of large data names its size, so that data never meets a receiver that has no room
    // for it; the header, which comes first, says then what was wrong.
    header_slot_ = uint64_t{2} << 62 | uint64_t{held} << 61 | c.tag;
    data_slot_ = held ? header_slot_ | uint64_t{1} << 60
                      : uint64_t{3} << 62 | uint64_t{c.tag} << 42 | packed_.bytes();
    const size_t inlined = fits() ? packed_.bytes() : 0;
    message_.reset(new std::byte[sizeof(Header) + (sends_ ? inlined : kInlineBytes)]);
    link_->guard(name_, [&] { start(inlined); });
  }
  ~Message() {
    if (thread_.joinable()) thread_.join();
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  bool sends() const { return sends_; }
  bool over() const { return over_; }
  Clock::time_point deadline() const { return deadline_; }

  /// Returns when it is over, well or not.
  void settle() {
    std::unique_lock lock(mutex_);
    // Others who ask meanwhile are held by the mutex.
    if (!over_ && !thread_.joinable()) end(finish());
    changed_.wait(lock, [&] { return over_.load(); });
  }

  void wait() {
    settle();
    if (error_) std::rethrow_exception(error_);
  }

  void wait(Millis limit) {
    std::unique_lock lock(mutex_);
    finish_beside();
    TARN_CHECK_AS(TimeoutError, changed_.wait_for(lock, limit, [&] { return over_.load(); }), name_,
                  ": not done after ", duration_text(limit), "; it goes on");
    if (error_) std::rethrow_exception(error_);
  }

  bool test() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) finish_beside();  // else another thread waits for it
    return over_;
  }

  /// After the deadline, when the transport does not wait any more.
  void end_late() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock && !over_ && !thread_.joinable()) end(finish());
  }

 private:
  bool fits() const { return packed_.bytes() <= kInlineBytes; }

  void start(size_t inlined) {
    Channel& channel = link_->channel();
    if (!sends_) {
      first_ = channel.receive(peer_, header_slot_, message_.get(), sizeof(Header) + kInlineBytes);
      if (!fits()) second_ = channel.receive(peer_, data_slot_, packed_.data(), packed_.bytes());
      return;
    }
    std::memcpy(message_.get(), &header_, sizeof header_);
    if (inlined > 0) std::memcpy(message_.get() + sizeof header_, packed_.data(), inlined);
    first_ = channel.send(peer_, header_slot_, message_.get(), sizeof(Header) + inlined);
    if (!fits()) second_ = channel.send(peer_, data_slot_, packed_.data(), packed_.bytes());
  }

  void check_header() {
    Header theirs;
    std::memcpy(&theirs, message_.get(), sizeof theirs);
    header_.check(theirs, peer_);
  }

  void transfer() {
    first_->wait(deadline_);
    if (!sends_) check_header();
    if (second_) second_->wait(deadline_);
    if (sends_) return;
    if (fits() && packed_.bytes() > 0) {
      std::memcpy(packed_.data(), message_.get() + sizeof(Header), packed_.bytes());
    }
    packed_.unpack();
  }

  std::exception_ptr finish() {
    try {
      link_->guard(name_, [&] {
        try {
          transfer();
        } catch (const TimeoutError&) {
          // The transport says how long it waited, which may be from late on.
          throw TimeoutError("rank " + std::to_string(peer_) + " did not answer within " +
                             duration_text(limit_));
        }
      });
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  // REQUIRES: the mutex is held, here and below.
  void end(std::exception_ptr error) {
    error_ = std::move(error);
    first_.reset();
    second_.reset();
    message_.reset();
    packed_ = {};  // lets go of the tensors
    over_ = true;
    changed_.notify_all();
  }

  // A transport can wait but not look: a thread waits, so that this one need not.
  void finish_beside() {
    if (over_ || thread_.joinable()) return;
    try {
      thread_ = std::thread([this] {
        std::exception_ptr error = finish();
        const std::lock_guard lock(mutex_);
        end(std::move(error));
      });
    } catch (const std::system_error&) {  // none to be had: it is looked at when it is late
    }
  }

  std::shared_ptr<Link> link_;
  int peer_;
  bool sends_;
  Packed packed_;
  Millis limit_;
  Clock::time_point deadline_;  // from the call on, as that of a collective
  std::string name_;
  Header header_;
  uint64_t header_slot_ = 0, data_slot_ = 0;
  std::unique_ptr<std::byte[]> message_;
  TransferPtr first_, second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> over_{false};
  std::exception_ptr error_;
  std::thread thread_;
};

namespace {

// Copies, so that nothing is waited for under the list's mutex.
PendingMessages::List all_of(PendingMessages& pending) {
  const std::lock_guard lock(pending.mutex);
  return pending.messages;
}

// What a caller has of a message. Letting go of it sets the message going: nobody will wait for it,
// but the other rank does.
class Handle final : public Work {
 public:
  Handle(std::shared_ptr<Message> message, std::shared_ptr<PendingMessages> pending)
      : message_(std::move(message)), pending_(std::move(pending)) {}
  ~Handle() override { message_->test(); }

  void wait() override {
    const WaitClock clock;
    set_receives_going();
    message_->wait();
  }
  void wait(Millis limit) override {
    const WaitClock clock;
    set_receives_going();
    message_->wait(limit);
  }
  bool test() override { return message_->test(); }

 private:
  // Whoever waits for a send: in a ring where every rank waits for its send first, nobody would
  // take what is sent otherwise.
  void set_receives_going() {
    if (!message_->sends() || message_->over()) return;
    for (const auto& other : all_of(*pending_)) {
      if (!other->sends()) other->test();
    }
  }

  std::shared_ptr<Message> message_;
  std::shared_ptr<PendingMessages> pending_;
};

// What a caller has of a message that was dropped.
class Dropped final : public Work {
 public:
  void wait() override {}
  void wait(Millis) override {}
  bool test() override { return true; }
};

}  // namespace

Messages::Messages(std::shared_ptr<Link> link)
    : link_(std::move(link)), pending_(std::make_shared<PendingMessages>()) {}

Messages::~Messages() {
  set_going();
  {
    const std::lock_guard lock(pending_->mutex);
    stop_ = true;
  }
  pending_->changed.notify_all();
  if (thread_.joinable()) thread_.join();
  PendingMessages::List all;  // out of the list, which they may hold, and which Works still read
  {
    const std::lock_guard lock(pending_->mutex);
    all.swap(pending_->messages);
  }
  for (const auto& message : all) message->settle();
}

void Messages::set_going() {
  for (const auto& message : all_of(*pending_)) message->test();
}

WorkPtr Messages::start(const Collective& c) {
  const bool held = holds_back(c);
  if (c.lost) return std::make_shared<Dropped>();
  const auto message = std::make_shared<Message>(link_, c, held);
  PendingMessages::List over, late;  // go after the lock
  {
    const std::lock_guard lock(pending_->mutex);
    take_late(Clock::time_point::min(), over, late);
    pending_->messages.push_back(message);
    if (!thread_.joinable()) thread_ = std::thread([this] { watch(); });
    if (message->deadline() < next_look_) pending_->changed.notify_all();
    next_look_ = std::min(next_look_, message->deadline());
  }
  return std::make_shared<Handle>(message, pending_);
}

// A dropped message stops its lane: a later one must not arrive in its place.
bool Messages::holds_back(const Collective& c) {
  const std::lock_guard lock(pending_->mutex);
  const Lane lane{c.kind == CollectiveKind::kSend, c.root, c.tag};
  if (c.lost) {
    link_->lose();
    stopped_.insert(lane);
  }
  return stopped_.contains(lane);
}

// Moves what is over from the list, copies what is late at `now`; returns when the next will be.
// REQUIRES: the list's mutex is held.
Clock::time_point Messages::take_late(Clock::time_point now, PendingMessages::List& over,
                                      PendingMessages::List& late) {
  auto next = Clock::time_point::max();
  PendingMessages::List& all = pending_->messages;
  for (auto at = all.begin(); at != all.end();) {
    const auto message = at++;
    if ((*message)->over()) {
      over.splice(over.end(), all, message);
      continue;
    }
    if ((*message)->deadline() <= now) late.push_back(*message);
    next = std::min(next, (*message)->deadline());
  }
  return next;
}

void Messages::watch() {
  ::pthread_setname_np(::pthread_self(), "tarn-messages");
  std::unique_lock lock(pending_->mutex);
  while (!stop_) {
    const auto now = Clock::now();
    PendingMessages::List over, late;
    next_look_ = std::clamp(take_late(now, over, late), now + kLook, now + kIdle);
    lock.unlock();
    over.clear();
    for (const auto& message : late) message->end_late();
    late.clear();
    lock.lock();
    const auto next = next_look_;  // a message may have come with an earlier limit
    if (!stop_) pending_->changed.wait_until(lock, next);
  }
}

}  // namespace tarn::dist
