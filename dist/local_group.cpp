// local_group.cpp - messages between threads: the receiver copies out of the sender's memory.
#include "tarn/dist/local_group.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "tarn/dist/channel_group.h"

namespace tarn::dist {
namespace {

// A message that waits for its receiver, or is being copied by it.
struct Letter {
  const void* data;
  size_t bytes;
  enum { kWaiting, kCopying, kTaken } state = kWaiting;
};

// Where the ranks of one group meet. A receiver takes the letters of one place in order.
struct Hub {
  using Place = std::tuple<int, int, uint64_t>;  // from, to, slot

  explicit Hub(int size) : closed(static_cast<size_t>(size)), bells(static_cast<size_t>(size)) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Place, std::deque<std::shared_ptr<Letter>>> letters;
  std::map<Place, uint64_t> receivers, served;  // receivers are served in the order they came
  std::vector<std::string> closed;              // why a rank is gone, once it is
  std::vector<Bell> bells;                      // of the ranks

  // Waits until ready() or the deadline, or until `peer` has left. REQUIRES: lock holds mutex.
  template <class F>
  void wait(std::unique_lock<std::mutex>& lock, int self, int peer, Clock::time_point deadline,
            F ready) {
    const auto gone = [&](int rank) { return !closed[static_cast<size_t>(rank)].empty(); };
    const bool in_time =
        changed.wait_until(lock, deadline, [&] { return ready() || gone(peer) || gone(self); });
    if (ready()) return;
    const std::string who = "rank " + std::to_string(peer);
    if (gone(self)) throw PeerError(peer, "ended here: " + closed[static_cast<size_t>(self)]);
    if (gone(peer)) throw PeerError(peer, who + " is gone: " + closed[static_cast<size_t>(peer)]);
    TARN_CHECK_AS(TimeoutError, in_time, who, " did not answer");
  }
};

class LocalSend final : public Transfer {
 public:
  LocalSend(std::shared_ptr<Hub> hub, Hub::Place place, const void* data, size_t bytes)
      : hub_(std::move(hub)),
        place_(place),
        letter_(std::make_shared<Letter>(Letter{data, bytes})) {
    {
      std::lock_guard lock(hub_->mutex);
      hub_->letters[place_].push_back(letter_);
    }
    hub_->changed.notify_all();
    const auto [from, to, slot] = place_;
    if (slot & kRings) hub_->bells[static_cast<size_t>(to)].message_came();
  }
  ~LocalSend() override {
    std::unique_lock lock(hub_->mutex);
    // The copy ends by itself, soon; the memory must stay until then.
    hub_->changed.wait(lock, [&] { return letter_->state != Letter::kCopying; });
    if (letter_->state == Letter::kTaken) return;
    const auto found = hub_->letters.find(place_);
    if (found == hub_->letters.end()) return;
    std::erase(found->second, letter_);
    if (found->second.empty()) hub_->letters.erase(found);
  }
  void wait(Clock::time_point deadline) override {
    std::unique_lock lock(hub_->mutex);
    hub_->wait(lock, std::get<0>(place_), std::get<1>(place_), deadline,
               [&] { return letter_->state == Letter::kTaken; });
  }

 private:
  std::shared_ptr<Hub> hub_;
  Hub::Place place_;
  std::shared_ptr<Letter> letter_;
};

class LocalReceive final : public Transfer {
 public:
  LocalReceive(std::shared_ptr<Hub> hub, Hub::Place place, void* data, size_t capacity)
      : hub_(std::move(hub)), place_(place), data_(data), capacity_(capacity) {
    std::lock_guard lock(hub_->mutex);
    number_ = hub_->receivers[place_]++;
  }

  void wait(Clock::time_point deadline) override {
    std::unique_lock lock(hub_->mutex);
    hub_->wait(lock, std::get<1>(place_), std::get<0>(place_), deadline,
               [&] { return is_there(); });
    const std::shared_ptr<Letter> letter = *mine();
    const std::string who = "rank " + std::to_string(std::get<0>(place_));
    if (letter->bytes > capacity_) {
      throw PeerError(std::get<0>(place_), who + " sent " + std::to_string(letter->bytes) +
                                               " bytes; there is room for " +
                                               std::to_string(capacity_));
    }
    letter->state = Letter::kCopying;
    lock.unlock();
    if (letter->bytes > 0) std::memcpy(data_, letter->data, letter->bytes);
    lock.lock();
    letter->state = Letter::kTaken;
    drop_taken();
    lock.unlock();
    hub_->changed.notify_all();
  }

  bool ready() override {
    const std::lock_guard lock(hub_->mutex);
    return is_there();
  }

 private:
  // REQUIRES: the hub's mutex is held, here and below.
  std::shared_ptr<Letter>* mine() {
    const auto found = hub_->letters.find(place_);
    if (found == hub_->letters.end()) return nullptr;
    // Letters before mine belong to receives that were called earlier and are not waited for yet.
    const uint64_t ahead = number_ - hub_->served[place_];
    return ahead < found->second.size() ? &found->second[ahead] : nullptr;
  }
  bool is_there() {
    const auto* letter = mine();
    return letter && (*letter)->state == Letter::kWaiting;
  }

  // Removes what was taken from the front, and the place itself when all are served.
  void drop_taken() {
    auto& queue = hub_->letters[place_];
    uint64_t& served = hub_->served[place_];
    for (; !queue.empty() && queue.front()->state == Letter::kTaken; ++served) queue.pop_front();
    if (!queue.empty()) return;
    hub_->letters.erase(place_);
    if (served != hub_->receivers[place_]) return;
    hub_->receivers.erase(place_);
    hub_->served.erase(place_);
  }

  std::shared_ptr<Hub> hub_;
  Hub::Place place_;
  void* data_;
  size_t capacity_;
  uint64_t number_ = 0;
};

class LocalChannel final : public Channel {
 public:
  LocalChannel(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~LocalChannel() override { close("it left the group"); }
  TransferPtr send(int to, uint64_t slot, const void* data, size_t bytes) override {
    return std::make_unique<LocalSend>(hub_, Hub::Place{rank_, to, slot}, data, bytes);
  }
  TransferPtr receive(int from, uint64_t slot, void* data, size_t capacity) override {
    return std::make_unique<LocalReceive>(hub_, Hub::Place{from, rank_, slot}, data, capacity);
  }
  Bell* bell() override { return &hub_->bells[static_cast<size_t>(rank_)]; }
  void close(const std::string& reason) noexcept override {
    {
      std::lock_guard lock(hub_->mutex);
      std::string& mine = hub_->closed[static_cast<size_t>(rank_)];
      if (mine.empty()) mine = reason;
    }
    hub_->changed.notify_all();
  }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

// The hubs of the groups and subgroups of one make_local_groups call.
struct Hubs {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Hub>> by_name;

  std::shared_ptr<Hub> get(const std::string& name, int size) {
    std::lock_guard lock(mutex);
    std::shared_ptr<Hub>& hub = by_name[name];
    if (!hub) hub = std::make_shared<Hub>(size);
    return hub;
  }
};

}  // namespace

std::vector<std::shared_ptr<ProcessGroup>> make_local_groups(int size, GroupOptions options) {
  TARN_CHECK_AS(ValueError, size > 0, "local groups: needs at least one rank; got ", size);
  const auto hubs = std::make_shared<Hubs>();
  const ChannelFactory factory = [hubs](const std::string& name, int rank, int n, Millis) {
    return std::make_unique<LocalChannel>(hubs->get(name, n), rank);
  };
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (int r = 0; r < size; ++r) {
    groups.push_back(std::make_shared<ChannelGroup>("local", factory, r, size, options));
  }
  return groups;
}

void run_threads(int size, const std::function<std::shared_ptr<ProcessGroup>(int rank)>& make,
                 const RankBody& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      std::shared_ptr<ProcessGroup> group;
      try {
        group = make(r);
        body(*group);
      } catch (const std::exception& error) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        if (group) group->abort(error.what());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

void run_threads(int size,
                 const std::function<std::shared_ptr<ProcessGroup>(
                     const std::shared_ptr<Store>& store, int rank)>& make,
                 const RankBody& body) {
  const auto store = std::make_shared<MemoryStore>();
  const auto make_here = [&](int r) {
    try {
      return make(store, r);
    } catch (...) {
      store->abort(std::current_exception());
      throw;
    }
  };
  run_threads(size, make_here, body);
}

void run_local(int size, const RankBody& body, GroupOptions options) {
  auto groups = make_local_groups(size, std::move(options));
  run_threads(
      size, [&](int r) { return std::move(groups[static_cast<size_t>(r)]); }, body);
}

}  // namespace tarn::dist
