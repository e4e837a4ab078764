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

// Copied in about the time in which another thread would be woken for it.
constexpr size_t kSoonCopied = 256 * 1024;

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
    // for it; the header, which is read first, says then what was wrong.
    header_slot_ = kRings | uint64_t{held} << 61 | c.tag;
    data_slot_ =
        held ? header_slot_ ^ (kRings | kLarge) : kLarge | uint64_t{c.tag} << 42 | packed_.bytes();
    const size_t inlined = fits() ? packed_.bytes() : 0;
    message_.reset(new std::byte[sizeof(Header) + (sends_ ? inlined : kInlineBytes)]);
    link_->guard(name_, [&] { start(inlined); });
    bell_ = sends_ ? nullptr : link_->channel().bell();
    if (bell_) bell_->unattended.fetch_add(1);
  }
  ~Message() {
    if (thread_.joinable()) thread_.join();
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  bool over() const { return over_; }
  Clock::time_point deadline() const { return deadline_; }

  /// Returns when it is over, well or not.
  void settle() {
    std::unique_lock lock(mutex_);
    if (attend()) finish_here(lock);
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
    const std::lock_guard lock(mutex_);
    finish_beside();
    return over_;
  }

  /// Goes on without anybody who waits: with a bell the group's thread receives and ends it.
  void set_going() {
    if (bell_) return;
    const std::lock_guard lock(mutex_);
    finish_beside();
  }

  /// Whether look_after may have something to do.
  bool needs_look(Clock::time_point now) const { return bell_ || deadline_ <= now; }

  /// Once it can be found among the group's messages: what came before it rang no bell. What takes
  /// its time is left to the group's thread.
  void receive_early() {
    std::unique_lock lock(mutex_);
    if (!has_come()) return;
    if (packed_.bytes() > kSoonCopied) return bell_->ring();
    if (attend()) finish_here(lock);
  }

  /// By the group's thread: receives what has come; ends what is late, as the transport does not
  /// wait any more then.
  void look_after(Clock::time_point now) {
    std::unique_lock lock(mutex_);
    if ((deadline_ <= now || has_come()) && attend()) finish_here(lock);
  }

 private:
  // Slots of large data.
  static constexpr uint64_t kLarge = uint64_t{1} << 62;

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
    // The header comes last: who has seen it need not wait for the data.
    if (!fits()) second_ = channel.send(peer_, data_slot_, packed_.data(), packed_.bytes());
    first_ = channel.send(peer_, header_slot_, message_.get(), sizeof(Header) + inlined);
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
      link_->guard(name_, [&] { within(limit_, [&] { transfer(); }); });
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  // REQUIRES: the mutex is held, here and below. It never is while another rank is waited for.
  //
  // True for one caller, which has to finish it; what it touches for that is its own until then.
  bool attend() {
    if (attended_) return false;
    if (bell_) bell_->unattended.fetch_sub(1);
    return attended_ = true;
  }
  bool has_come() const { return !attended_ && bell_ && first_->ready(); }

  // REQUIRES: attended by the caller.
  void finish_here(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::exception_ptr error = finish();
    lock.lock();
    end(std::move(error));
  }

  void end(std::exception_ptr error) {
    error_ = std::move(error);
    first_.reset();
    second_.reset();
    message_.reset();
    packed_ = {};  // lets go of the tensors
    over_ = true;
    changed_.notify_all();
  }

  // A thread waits, so that this one need not: without a bell a transport cannot look, and with one
  // only who waits learns soon that the other rank is gone.
  void finish_beside() {
    if (attended_) return;
    try {
      thread_ = std::thread([this] {
        std::exception_ptr error = finish();
        const std::lock_guard lock(mutex_);
        end(std::move(error));
      });
    } catch (const std::system_error&) {  // none to be had: the group's thread sees to it
      return;
    }
    attend();
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
  Bell* bell_ = nullptr;  // of a receive, if the channel has one
  TransferPtr first_, second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool attended_ = false;  // somebody finishes it, or has
  std::atomic<bool> over_{false};
  std::exception_ptr error_;
  std::thread thread_;
};

namespace {

// What a caller has of a message. Letting go of it sets the message going: nobody will wait for it,
// but the other rank does.
class Handle final : public Work {
 public:
  explicit Handle(std::shared_ptr<Message> message) : message_(std::move(message)) {}
  ~Handle() override { message_->set_going(); }

  void wait() override {
    const WaitClock clock;
    message_->wait();
  }
  void wait(Millis limit) override {
    const WaitClock clock;
    message_->wait(limit);
  }
  bool test() override { return message_->test(); }

 private:
  std::shared_ptr<Message> message_;
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
    : link_(std::move(link)),
      bell_(link_->channel().bell() ? *link_->channel().bell() : own_bell_) {}

Messages::~Messages() {
  set_going();
  for (const auto& message : all()) message->settle();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  bell_.ring();
  if (thread_.joinable()) thread_.join();
}

// Copies, so that nothing is waited for under the mutex.
Messages::List Messages::all() {
  const std::lock_guard lock(mutex_);
  return messages_;
}

void Messages::set_going() {
  for (const auto& message : all()) message->set_going();
}

WorkPtr Messages::start(const Collective& c) {
  const bool held = holds_back(c);
  if (c.lost) return std::make_shared<Dropped>();
  const auto message = std::make_shared<Message>(link_, c, held);
  List over;  // goes after the lock
  {
    const std::lock_guard lock(mutex_);
    take_over(over);
    messages_.push_back(message);
    if (!thread_.joinable()) thread_ = std::thread([this] { watch(); });
    if (message->deadline() < next_look_) bell_.ring();
    next_look_ = std::min(next_look_, message->deadline());
  }
  message->receive_early();
  return std::make_shared<Handle>(message);
}

// A dropped message stops its lane: a later one must not arrive in its place.
bool Messages::holds_back(const Collective& c) {
  const std::lock_guard lock(mutex_);
  const Lane lane{c.kind == CollectiveKind::kSend, c.root, c.tag};
  if (c.lost) {
    link_->lose();
    stopped_.insert(lane);
  }
  return stopped_.contains(lane);
}

// Moves what is over from the list; returns when the first of the others will be late.
// REQUIRES: the mutex is held.
Clock::time_point Messages::take_over(List& over) {
  auto next = Clock::time_point::max();
  for (auto at = messages_.begin(); at != messages_.end();) {
    const auto message = at++;
    if ((*message)->over()) {
      over.splice(over.end(), messages_, message);
    } else {
      next = std::min(next, (*message)->deadline());
    }
  }
  return next;
}

void Messages::watch() {
  ::pthread_setname_np(::pthread_self(), "tarn-messages");
  for (;;) {
    const uint32_t seen = bell_.rung.load();  // before the look: what comes meanwhile rings again
    const auto now = Clock::now();
    List over, in_question;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      next_look_ = std::clamp(take_over(over), now + kLook, now + kIdle);
      for (const auto& message : messages_) {
        if (message->needs_look(now)) in_question.push_back(message);
      }
    }
    over.clear();
    for (const auto& message : in_question) message->look_after(now);
    in_question.clear();
    Clock::time_point next;
    {
      const std::lock_guard lock(mutex_);
      next = next_look_;  // a message may have come with an earlier limit
    }
    futex_wait(bell_.rung, seen, time_left(next));
  }
}

}  // namespace tarn::dist
