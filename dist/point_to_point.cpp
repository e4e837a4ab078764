// point_to_point.cpp - send and recv: a header, the data with it or after it.
#include "tarn/dist/point_to_point.h"

#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace tarn::dist {
namespace {

class PointToPoint;

// Receives that have been started, by link. Whoever waits for a send sets them going: in a ring
// where every rank waits for its send first, nobody would take what is sent otherwise.
struct StartedReceives {
  std::mutex mutex;
  std::unordered_map<const Link*, std::vector<std::weak_ptr<PointToPoint>>> by_link;
};
StartedReceives& started_receives() {
  static StartedReceives& all = *new StartedReceives;
  return all;
}

class PointToPoint final : public Work, public std::enable_shared_from_this<PointToPoint> {
 public:
  PointToPoint(std::shared_ptr<Link> link, Collective c)
      : link_(std::move(link)),
        peer_(c.root),
        sends_(c.kind == CollectiveKind::kSend),
        packed_(sends_ ? c.inputs : c.outputs, sends_),
        limit_(link_->next_timeout()) {
    name_ = std::string(kind_name(c.kind)) + " (" + c.describe() + ", tag " +
            std::to_string(c.tag) + ")";
    const Tensor& tensor = (sends_ ? c.inputs : c.outputs)[0];
    header_.kind = CollectiveKind::kSend;
    header_.dtype = static_cast<uint8_t>(tensor.dtype());
    header_.sequence = c.tag;
    header_.bytes = packed_.bytes();
    // The slot of large data names its size, so that data never meets a receiver that has no room
    // for it; the header, which comes first, says then what was wrong.
    header_slot_ = uint64_t{2} << 62 | c.tag;
    data_slot_ = uint64_t{3} << 62 | uint64_t{c.tag} << 42 | packed_.bytes();
    const size_t inlined = fits() ? packed_.bytes() : 0;
    message_.reset(new std::byte[sizeof(Header) + (sends_ ? inlined : kInlineBytes)]);
    link_->guard(name_, [&] { start(inlined); });
  }

  // The transport must not write into tensors that are gone.
  ~PointToPoint() override {
    try {
      wait();
    } catch (const std::exception&) {  // nobody asked
    }
    if (thread_.joinable()) thread_.join();
  }

  // To be called once a shared pointer holds it.
  void note_receive() {
    if (sends_) return;
    const std::lock_guard lock(started_receives().mutex);
    auto& list = started_receives().by_link[link_.get()];
    std::erase_if(list, [](const auto& w) { return w.expired(); });
    list.push_back(weak_from_this());
  }

  void wait() override {
    if (sends_) set_receives_going();
    std::unique_lock lock(mutex_);
    if (thread_.joinable()) {
      changed_.wait(lock, [&] { return done_; });
    } else if (!done_) {
      // Others who ask meanwhile are held by the mutex.
      finish_now();
    }
    if (error_) std::rethrow_exception(error_);
  }

  void wait(Millis limit) override {
    if (sends_) set_receives_going();
    std::unique_lock lock(mutex_);
    finish_beside();
    TARN_CHECK_AS(TimeoutError, changed_.wait_for(lock, limit, [&] { return done_; }), name_,
                  ": not done after ", duration_text(limit), "; it goes on");
    if (error_) std::rethrow_exception(error_);
  }

  bool test() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;  // another thread waits for it
    finish_beside();
    return done_;
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

  std::exception_ptr finish() {
    try {
      link_->guard(name_, [&] {
        const auto deadline = Clock::now() + limit_;
        first_->wait(deadline);
        if (!sends_) check_header();
        if (second_) second_->wait(deadline);
        if (sends_) return;
        if (fits() && packed_.bytes() > 0) {
          std::memcpy(packed_.data(), message_.get() + sizeof(Header), packed_.bytes());
        }
        packed_.unpack();
      });
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  void set_receives_going() {
    std::vector<std::shared_ptr<PointToPoint>> receives;
    {
      const std::lock_guard lock(started_receives().mutex);
      const auto found = started_receives().by_link.find(link_.get());
      if (found == started_receives().by_link.end()) return;
      for (const auto& weak : found->second) {
        if (auto receive = weak.lock()) receives.push_back(std::move(receive));
      }
      started_receives().by_link.erase(found);
    }
    for (const auto& receive : receives) receive->test();
  }

  void finish_now() {
    error_ = finish();
    done_ = true;
  }

  // A transport can wait but not look: a thread waits, so that this one need not.
  void finish_beside() {
    if (done_ || thread_.joinable()) return;
    thread_ = std::thread([this] {
      const std::exception_ptr error = finish();
      const std::lock_guard lock(mutex_);
      error_ = error;
      done_ = true;
      changed_.notify_all();
    });
  }

  std::shared_ptr<Link> link_;
  int peer_;
  bool sends_;
  Packed packed_;
  Millis limit_;
  std::string name_;
  Header header_;
  uint64_t header_slot_ = 0, data_slot_ = 0;
  std::unique_ptr<std::byte[]> message_;
  TransferPtr first_, second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace

WorkPtr start_point_to_point(std::shared_ptr<Link> link, Collective c) {
  auto work = std::make_shared<PointToPoint>(std::move(link), std::move(c));
  work->note_receive();
  return work;
}

}  // namespace tarn::dist
