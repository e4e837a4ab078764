// host_channel.cpp - messages between processes of one host.
#include "tarn/dist/host_channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tarn/dist/channel_group.h"
#include "tarn/dist/host_segment.h"
#include "tarn/dist/peer_process.h"

namespace tarn::dist {
namespace {

// Between looks whether the other rank is alive; a message or a farewell wakes at once.
constexpr Millis kLook{20};
// A message that is given up may be in the midst of being copied: that takes no longer, unless the
// process which copies was stopped.
constexpr Millis kCopyPatience{1000};

struct Peer {
  pid_t pid = 0;
  PeerProcess process = {};
};

// True if all of it was read.
bool read_memory(pid_t pid, uint64_t address, void* to, size_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    iovec mine{at, bytes}, theirs{reinterpret_cast<void*>(address), bytes};
    const ssize_t n = ::process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
    if (n <= 0) return false;
    at += n;
    address += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

// What the channel and its transfers share.
struct Desk {
  Desk(std::unique_ptr<Segment> s, std::vector<Peer> p, int r)
      : segment(std::move(s)), peers(std::move(p)), rank(r) {}

  bool dead(int peer) const { return peers[static_cast<size_t>(peer)].process.ended(); }
  // Throws if the wait for `peer` has no point any more.
  void check(int peer, Clock::time_point deadline) const {
    const std::string who = "rank " + std::to_string(peer);
    const Farewell& own = segment->farewell(rank);
    if (own.closed.load()) throw PeerError(peer, std::string("ended here: ") + own.reason);
    const Farewell& theirs = segment->farewell(peer);
    if (theirs.closed.load()) throw PeerError(peer, who + " is gone: " + theirs.reason);
    if (dead(peer)) throw PeerError(peer, who + " is gone: it ended or was killed");
    TARN_CHECK_AS(TimeoutError, Clock::now() < deadline, who, " did not answer");
  }

  std::unique_ptr<Segment> segment;
  std::vector<Peer> peers;
  int rank;
  std::mutex mutex;  // this process's threads: posting, and choosing a letter
  // Receives that were called and have not ended, by sender and slot, oldest first.
  std::map<std::pair<int, uint64_t>, std::vector<uint64_t>> waiting;
  uint64_t tickets = 0;
};

class HostSend final : public Transfer {
 public:
  HostSend(std::shared_ptr<Desk> desk, int to, uint64_t slot, const void* data, size_t bytes)
      : desk_(std::move(desk)), to_(to), pair_(desk_->segment->pair(desk_->rank, to)) {
    const std::lock_guard lock(desk_->mutex);
    index_ = pair_.posted.load();
    TARN_CHECK_AS(DistError, index_ - pair_.tail.load() < kLetters, "more than ", kLetters,
                  " messages to rank ", to, " wait for it to receive");
    Letter& l = letter();
    l.slot = slot;
    l.address = reinterpret_cast<uint64_t>(data);
    l.bytes = bytes;
    l.state.store(kWaiting);
    pair_.posted.store(index_ + 1);
    futex_wake(pair_.posted);
    if (slot & kRings) desk_->segment->bell(to_).message_came();
  }

  ~HostSend() override {
    uint32_t state = kWaiting;
    if (done() || letter().state.compare_exchange_strong(state, kWithdrawn)) return;
    const auto patience = Clock::now() + kCopyPatience;
    while (!done() && letter().state.load() == kCopying && !desk_->dead(to_)) {
      if (Clock::now() >= patience) {
        uint32_t copying = kCopying;  // the receiver sees that, and does not use what it got
        letter().state.compare_exchange_strong(copying, kWithdrawn);
        return;
      }
      futex_wait(pair_.taken, pair_.taken.load(), Millis(1));
    }
  }

  void wait(Clock::time_point deadline) override {
    for (;;) {
      const uint32_t seen = pair_.taken.load();
      if (done()) return;
      try {
        desk_->check(to_, deadline);
      } catch (const DistError&) {
        if (done()) return;  // taken since the look: the last message before the other rank left
        throw;
      }
      futex_wait(pair_.taken, seen, kLook);
    }
  }

 private:
  Letter& letter() const { return pair_.letters[index_ % kLetters]; }
  // The tail is asked first: once it has passed, the place may hold another letter.
  bool done() const {
    return static_cast<int32_t>(pair_.tail.load() - index_) > 0 || letter().state.load() == kTaken;
  }

  std::shared_ptr<Desk> desk_;
  int to_;
  Pair& pair_;
  uint32_t index_ = 0;
};

class HostReceive final : public Transfer {
 public:
  HostReceive(std::shared_ptr<Desk> desk, int from, uint64_t slot, void* data, size_t capacity)
      : desk_(std::move(desk)),
        from_(from),
        slot_(slot),
        data_(data),
        capacity_(capacity),
        pair_(desk_->segment->pair(from, desk_->rank)) {
    const std::lock_guard lock(desk_->mutex);
    ticket_ = ++desk_->tickets;
    desk_->waiting[{from_, slot_}].push_back(ticket_);
  }

  ~HostReceive() override {
    const std::lock_guard lock(desk_->mutex);
    forget();
  }

  void wait(Clock::time_point deadline) override {
    for (;;) {
      const uint32_t seen = pair_.posted.load();
      if (Letter* letter = choose()) return take(*letter);
      desk_->check(from_, deadline);
      futex_wait(pair_.posted, seen, kLook);
    }
  }

  bool ready() override {
    const std::lock_guard lock(desk_->mutex);
    return find();
  }

 private:
  // My letter, marked as being copied.
  Letter* choose() {
    const std::lock_guard lock(desk_->mutex);
    Letter* mine = find();
    uint32_t state = kWaiting;
    // Else it has been withdrawn meanwhile.
    if (!mine || !mine->state.compare_exchange_strong(state, kCopying)) return nullptr;
    forget();
    return mine;
  }

  // The n-th of the slot if n receives were called before this. REQUIRES: the mutex is held.
  Letter* find() const {
    const auto& tickets = desk_->waiting[{from_, slot_}];
    auto before = std::find(tickets.begin(), tickets.end(), ticket_) - tickets.begin();
    const uint32_t end = pair_.posted.load();
    for (uint32_t i = pair_.tail.load(); i != end; ++i) {
      Letter& l = pair_.letters[i % kLetters];
      if (l.state.load() == kWaiting && l.slot == slot_ && before-- == 0) return &l;
    }
    return nullptr;
  }

  void take(Letter& l) {
    const bool fits = l.bytes <= capacity_;
    const pid_t pid = desk_->peers[static_cast<size_t>(from_)].pid;
    const bool read = fits && read_memory(pid, l.address, data_, l.bytes);
    const uint64_t bytes = l.bytes;
    uint32_t copying = kCopying;
    const bool kept = l.state.compare_exchange_strong(copying, kTaken);
    {
      const std::lock_guard lock(desk_->mutex);
      uint32_t tail = pair_.tail.load();
      const uint32_t end = pair_.posted.load();
      for (; tail != end; ++tail) {
        const uint32_t state = pair_.letters[tail % kLetters].state.load();
        if (state != kTaken && state != kWithdrawn) break;
      }
      pair_.tail.store(tail);
    }
    pair_.taken.fetch_add(1);
    futex_wake(pair_.taken);
    const std::string who = "rank " + std::to_string(from_);
    if (!fits) {
      throw PeerError(from_, who + " sent " + std::to_string(bytes) + " bytes; there is room for " +
                                 std::to_string(capacity_));
    }
    if (!read) throw PeerError(from_, who + " is gone: it ended while its memory was read");
    if (!kept) throw PeerError(from_, who + " is gone: it gave up while its memory was read");
  }

  void forget() {
    const auto found = desk_->waiting.find({from_, slot_});
    if (found == desk_->waiting.end()) return;
    std::erase(found->second, ticket_);
    if (found->second.empty()) desk_->waiting.erase(found);
  }

  std::shared_ptr<Desk> desk_;
  int from_;
  uint64_t slot_;
  void* data_;
  size_t capacity_;
  Pair& pair_;
  uint64_t ticket_ = 0;
};

class HostChannel final : public Channel {
 public:
  HostChannel(std::shared_ptr<Desk> desk, int size) : desk_(std::move(desk)), size_(size) {}
  ~HostChannel() override { close("it left the group"); }

  TransferPtr send(int to, uint64_t slot, const void* data, size_t bytes) override {
    return std::make_unique<HostSend>(desk_, to, slot, data, bytes);
  }
  TransferPtr receive(int from, uint64_t slot, void* data, size_t capacity) override {
    return std::make_unique<HostReceive>(desk_, from, slot, data, capacity);
  }
  Bell* bell() override { return &desk_->segment->bell(desk_->rank); }
  void close(const std::string& reason) noexcept override {
    const std::lock_guard lock(closing_);
    Farewell& own = desk_->segment->farewell(desk_->rank);
    if (own.closed.load()) return;
    const size_t n = std::min(reason.size(), kReasonBytes - 1);
    std::memcpy(own.reason, reason.data(), n);
    own.closed.store(1);
    for (int r = 0; r < size_; ++r) {
      for (Pair* p :
           {&desk_->segment->pair(desk_->rank, r), &desk_->segment->pair(r, desk_->rank)}) {
        futex_wake(p->posted);
        futex_wake(p->taken);
      }
    }
  }

 private:
  std::shared_ptr<Desk> desk_;
  int size_;
  std::mutex closing_;
};

// Written before the meeting and read by the others as a trial.
const uint64_t kTrial = 0x7461726e2d747279;

std::vector<Peer> open_peers(const std::vector<std::string>& infos, bool& usable) {
  std::vector<Peer> peers;
  const std::string here = process_place();
  for (const std::string& info : infos) {
    std::istringstream in(info);
    std::string place;
    uint64_t address = 0, value = 0;
    Peer p;
    in >> place >> p.pid >> address;
    usable = usable && place == here;
    if (usable) {
      p.process = PeerProcess(p.pid);
      usable = p.process && read_memory(p.pid, address, &value, sizeof value) && value == kTrial;
    }
    peers.push_back(std::move(p));
  }
  return peers;
}

}  // namespace

ChannelPtr make_host_channel(Store& store, const std::string& name, int rank, int size,
                             Millis timeout) {
  const auto deadline = Clock::now() + timeout;
  // Where the kernel lets only a process's parents read its memory, allow the others too.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const std::string group = "group " + name;
  std::ostringstream mine;
  mine << process_place() << " " << ::getpid() << " " << reinterpret_cast<uint64_t>(&kTrial);
  const auto infos = exchange(store, group, rank, size, mine.str(), timeout);
  bool usable = true;
  std::vector<Peer> peers = open_peers(infos, usable);

  std::unique_ptr<Segment> segment;
  std::string path;
  if (rank == 0 && usable) {
    path = "/dev/shm/tarn-" + std::to_string(::getpid()) + "-" +
           std::to_string(Clock::now().time_since_epoch().count());
    try {
      segment = std::make_unique<Segment>(path, size, true);
    } catch (const DistError&) {
      path.clear();
    }
  }
  if (rank == 0) store.set(group + "/segment", path);
  if (rank != 0) {
    path = store.get(group + "/segment", time_left(deadline));
    if (path.empty()) usable = false;
    try {
      if (usable) segment = std::make_unique<Segment>(path, size, false);
    } catch (const DistError&) {  // then nobody uses it
    }
  }
  const auto desk = std::make_shared<Desk>(std::move(segment), std::move(peers), rank);
  const auto opinions = exchange(store, group + "/host", rank, size, desk->segment ? "yes" : "no",
                                 time_left(deadline));
  if (rank == 0 && desk->segment) desk->segment->unlink();
  if (std::count(opinions.begin(), opinions.end(), "yes") != size) return nullptr;
  auto channel = std::make_unique<HostChannel>(desk, size);
  meet(*channel, rank, size, deadline);
  return channel;
}

std::shared_ptr<ProcessGroup> make_host_group(std::shared_ptr<Store> store, int rank, int size,
                                              GroupOptions options, ChannelPtr own) {
  const auto made = std::make_shared<ChannelPtr>(std::move(own));
  const ChannelFactory factory = [store = std::move(store), made](const std::string& name, int r,
                                                                  int n, Millis timeout) {
    if (*made) return std::move(*made);
    ChannelPtr channel = make_host_channel(*store, name, r, n, timeout);
    TARN_CHECK_AS(UnsupportedError, channel, "host group: the ranks of group ", name,
                  " are not on one host, or may not read each other's memory; use gloo");
    return channel;
  };
  return std::make_shared<ChannelGroup>("host", factory, rank, size, std::move(options));
}

}  // namespace tarn::dist
