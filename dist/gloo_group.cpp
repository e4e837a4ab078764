// gloo_group.cpp - a channel over Gloo's unbound buffers. The only file that includes Gloo.
//
// Gloo reports errors as exceptions from the waiting call, and ends the process if a message is
// longer than its buffer (see Note [First message]). One thread of Gloo's own serves the sockets of
// all groups of the process. Gloo writes to its sockets without MSG_NOSIGNAL, so that a peer that
// has gone would end this process by SIGPIPE: every call that writes, or starts the thread that
// does, stands under a SigpipeGuard.
#include "tarn/dist/gloo_group.h"

#include "tarn/dist/channel_group.h"

#ifdef TARN_HAVE_GLOO

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>

#include <arpa/inet.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tarn::dist {
namespace {

// Keeps SIGPIPE from the calling thread, and from threads it starts, while it lives; the program's
// own handling of the signal is not touched (Stevens and Rago, Advanced Programming in the UNIX
// Environment, 12.8). A write to a closed connection then fails with EPIPE, which Gloo reports.
class SigpipeGuard {
 public:
  SigpipeGuard() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeGuard() {
    const timespec now{};
    // What our own write left pending is taken here; it must not arrive when the mask is lifted.
    while (!was_pending_ && ::sigtimedwait(&pipe_, nullptr, &now) == -1 && errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  ::sigset_t pipe_, before_;
  bool was_pending_;
};

// How long a rank that lost another looks for the reason it may have left in the store.
constexpr Millis kReasonLimit{500};

// The store as Gloo wants it, for the addresses of one group.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(std::shared_ptr<dist::Store> store, std::string prefix, Millis timeout)
      : store_(std::move(store)), prefix_(std::move(prefix)), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set(prefix_ + key, {data.begin(), data.end()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_->get(prefix_ + key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const Millis& timeout) override {
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back(prefix_ + key);
    store_->wait(full, timeout);
  }

 private:
  std::shared_ptr<dist::Store> store_;
  std::string prefix_;
  Millis timeout_;
};

// This host's address on the way to another host: connecting a datagram socket sends nothing.
std::string address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  const int code = ::getaddrinfo(host.c_str(), "9", &hints, &found);
  TARN_CHECK_AS(DistError, code == 0, "gloo: cannot resolve ", host, ": ", ::gai_strerror(code));
  std::string address = "127.0.0.1";
  for (const addrinfo* a = found; a; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage self{};
    socklen_t size = sizeof self;
    const bool known = fd >= 0 && ::connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&self), &size) == 0;
    if (fd >= 0) ::close(fd);
    if (!known) continue;
    char text[NI_MAXHOST];
    ::getnameinfo(reinterpret_cast<sockaddr*>(&self), size, text, sizeof text, nullptr, 0,
                  NI_NUMERICHOST);
    address = text;
    break;
  }
  ::freeaddrinfo(found);
  return address;
}

std::shared_ptr<gloo::transport::Device> device_for(const GlooOptions& options) {
  const char* variable = std::getenv("TARN_GLOO_INTERFACE");
  const std::string interface =
      !options.interface.empty() ? options.interface : variable ? variable : "";
  TARN_CHECK_AS(DistError, interface.empty() || ::if_nametoindex(interface.c_str()) != 0,
                "gloo: cannot use interface ", interface,
                " (TARN_GLOO_INTERFACE chooses one): this host has none of that name");
  const std::string address = interface.empty() ? address_towards(options.master) : "";
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<gloo::transport::Device>> devices;
  std::lock_guard lock(mutex);
  auto& known = devices[interface + "|" + address];
  std::shared_ptr<gloo::transport::Device> device = known.lock();
  if (device) return device;
  gloo::transport::tcp::attr attributes;
  attributes.iface = interface;
  attributes.hostname = address;
  const SigpipeGuard guard;  // inherited by the thread that serves the device
  try {
    known = device = gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    tarn::detail::fail<DistError>(
        "gloo: cannot use ", interface.empty() ? "address " + address : "interface " + interface,
        " (TARN_GLOO_INTERFACE chooses one): ", error.what());
  }
  return device;
}

class GlooChannel;

class GlooTransfer final : public Transfer {
 public:
  GlooTransfer(const GlooChannel& channel, int peer, bool sends,
               std::unique_ptr<gloo::transport::UnboundBuffer> buffer)
      : channel_(channel), peer_(peer), sends_(sends), buffer_(std::move(buffer)) {}
  void wait(Clock::time_point deadline) override;

 private:
  const GlooChannel& channel_;
  int peer_;
  bool sends_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

class GlooChannel final : public Channel {
 public:
  GlooChannel(std::shared_ptr<dist::Store> store, const GlooOptions& options, std::string name,
              int rank, int size, Millis timeout)
      : store_(std::move(store)), name_(std::move(name)), rank_(rank) {
    const auto deadline = Clock::now() + timeout;
    device_ = device_for(options);
    exchange(*store_, "gloo group " + name_, rank, size, "", timeout);
    context_ = std::make_shared<gloo::rendezvous::Context>(rank, size);
    // Gloo waits five times this long for a connection.
    context_->setTimeout(std::max(Millis(1000), time_left(deadline)) / 5);
    GlooStore addresses(store_, "group " + name_ + "/gloo/", time_left(deadline));
    const SigpipeGuard guard;
    try {
      context_->connectFullMesh(addresses, device_);
      meet(*this, rank, size, deadline);
    } catch (const PeerError& error) {
      tarn::detail::fail<DistError>("group ", name_, ": rank ", rank, " of ", size,
                                    " could not connect to the others: ", error.what());
    } catch (const DistError&) {
      throw;
    } catch (const std::exception& error) {
      tarn::detail::fail<DistError>("group ", name_, ": rank ", rank, " of ", size,
                                    " could not connect to the others over ", device_->str(), ": ",
                                    error.what());
    }
  }

  TransferPtr send(int to, uint64_t slot, const void* data, size_t bytes) override {
    return start(to, true, const_cast<void*>(data), bytes,
                 [&](auto& buffer) { buffer.send(to, slot); });
  }
  TransferPtr receive(int from, uint64_t slot, void* data, size_t capacity) override {
    return start(from, false, data, capacity, [&](auto& buffer) { buffer.recv(from, slot); });
  }

  // A part waits for the receiver's word that it has room, and both sides' threads wake up for it:
  // few and long ones, and room for those that come meanwhile. Found by measuring 25 MiB between
  // two ranks (tarn-bench collectives --transport gloo).
  Pipeline pipeline() const override { return {.segment = 2 * 1024 * 1024, .depth = 4}; }

  void close(const std::string& reason) noexcept override {
    const SigpipeGuard guard;
    try {
      {
        const std::lock_guard lock(ended_mutex_);
        if (ended_.empty()) ended_ = reason;
      }
      context_->closeConnections();
      store_->set(reason_key(rank_), reason);
    } catch (
        const std::exception&) {  // the store may be gone too; the others see the connection end
    }
  }

  [[noreturn]] void lost(int peer) const {
    {
      const std::lock_guard lock(ended_mutex_);
      if (!ended_.empty()) throw PeerError(peer, "ended here: " + ended_);
    }
    std::string why = "it ended or was killed";
    try {
      why = store_->wait_for(reason_key(peer), kReasonLimit).value_or(why);
    } catch (const std::exception&) {  // rank 0 served the store and is gone
    }
    throw PeerError(peer, "rank " + std::to_string(peer) + " closed its connection: " + why);
  }

 private:
  std::string reason_key(int rank) const {
    return "group " + name_ + "/ended/" + std::to_string(rank);
  }

  template <class F>
  TransferPtr start(int peer, bool sends, void* data, size_t bytes, F post) {
    auto buffer = context_->createUnboundBuffer(data, bytes);
    const SigpipeGuard guard;
    try {
      post(*buffer);
    } catch (const gloo::Exception&) {
      lost(peer);
    }
    return std::make_unique<GlooTransfer>(*this, peer, sends, std::move(buffer));
  }

  std::shared_ptr<dist::Store> store_;
  std::string name_;
  int rank_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  mutable std::mutex ended_mutex_;
  std::string ended_;  // why this rank closed it, if it has
};

void GlooTransfer::wait(Clock::time_point deadline) {
  try {
    const Millis limit = std::max(Millis(1), time_left(deadline));
    const bool done = sends_ ? buffer_->waitSend(limit) : buffer_->waitRecv(limit);
    if (done) return;
  } catch (const gloo::Exception&) {
    TARN_CHECK_AS(TimeoutError, Clock::now() < deadline, "rank ", peer_, " did not answer");
  }
  channel_.lost(peer_);
}

}  // namespace

bool gloo_available() {
  return true;
}

std::shared_ptr<ProcessGroup> make_gloo_group(std::shared_ptr<Store> store, int rank, int size,
                                              GlooOptions options) {
  const GroupOptions group = options.group;
  const ChannelFactory factory = [store = std::move(store), options = std::move(options)](
                                     const std::string& name, int r, int n, Millis timeout) {
    return std::make_unique<GlooChannel>(store, options, name, r, n, timeout);
  };
  return std::make_shared<ChannelGroup>("gloo", factory, rank, size, group);
}

}  // namespace tarn::dist

#else

namespace tarn::dist {

bool gloo_available() {
  return false;
}

std::shared_ptr<ProcessGroup> make_gloo_group(std::shared_ptr<Store>, int, int, GlooOptions) {
  tarn::detail::fail<UnsupportedError>(
      "gloo: this build of tarn has no Gloo, which connects processes; install libgloo-dev and "
      "configure with -DTARN_GLOO=ON");
}

}  // namespace tarn::dist

#endif
