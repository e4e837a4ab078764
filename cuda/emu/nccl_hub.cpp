// nccl_hub.cpp - where the ranks of an emulated communicator meet.
//
// Stricter than NCCL, which hangs or mixes up data when ranks call different things: here all ranks
// get an asynchronous error. A rank that goes without a word is one too, as over a network.
#if TARN_HAVE_NCCL

#include <algorithm>
#include <cstring>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tarn/cuda/emu/nccl_wire.h"

namespace tarn::emu {
namespace {

bool same(const NcclMessage& a, const NcclMessage& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.root == b.root;
}

}  // namespace

std::string NcclHub::start() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in self{};
  self.sin_family = AF_INET;
  self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof self;
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&self), sizeof self) != 0 ||
      ::listen(listener, 64) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&self), &size) != 0) {
    if (listener >= 0) ::close(listener);
    return "";
  }
  const auto hub = std::make_shared<NcclHub>();
  std::thread([hub, listener] { hub->accept_all(listener); }).detach();
  return "127.0.0.1:" + std::to_string(ntohs(self.sin_port));
}

// Until all ranks have come; the first one says how many that is.
void NcclHub::accept_all(int listener) {
  for (std::size_t accepted = 0, wanted = 1; accepted < wanted; ++accepted) {
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    NcclMessage hello;
    NcclData none;
    if (socket < 0 || !nccl_read(socket, hello, none)) {
      if (socket >= 0) ::close(socket);
      break;
    }
    const int one = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (accepted == 0) wanted = hello.count;
    if (join(hello, socket)) {
      std::thread([hub = shared_from_this(), socket, rank = hello.root] {
        NcclMessage message;
        NcclData data;
        while (nccl_read(socket, message, data)) hub->take(rank, {message, std::move(data)});
        hub->leave(rank);
      }).detach();
    }
  }
  ::close(listener);
}

bool NcclHub::join(const NcclMessage& hello, int socket) {
  const std::lock_guard lock(mutex_);
  if (ranks_.empty()) ranks_.resize(hello.count);
  const auto index = static_cast<std::size_t>(hello.root);
  if (ranks_.size() != hello.count || index >= ranks_.size() || ranks_[index].here) {
    fail(ncclInvalidUsage, "rank " + std::to_string(hello.root) + " of " +
                               std::to_string(hello.count) + " came where " +
                               std::to_string(ranks_.size()) + " ranks meet, or came twice");
    ::close(socket);
    return false;
  }
  ranks_[index].socket = socket;
  ranks_[index].device = hello.type;
  ranks_[index].here = true;
  if (++joined_ < ranks_.size()) return true;
  for (std::size_t a = 0; a < ranks_.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (ranks_[a].device != ranks_[b].device) continue;
      fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(b) + " and rank " +
                                 std::to_string(a) + " both on CUDA device " +
                                 std::to_string(ranks_[a].device));
      return true;
    }
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    answer(static_cast<int>(r), {{.kind = NcclKind::kWelcome}, {}}, {});
  }
  return true;
}

void NcclHub::take(int rank, Call call) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  auto& own = ranks_[static_cast<std::size_t>(rank)];
  switch (call.message.kind) {
    case NcclKind::kBye:
      own.done = true;
      if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.done; })) {
        for (std::size_t r = 0; r < ranks_.size(); ++r) {
          answer(static_cast<int>(r), {{.kind = NcclKind::kBye}, {}}, {});
        }
      }
      return;
    case NcclKind::kSend:
    case NcclKind::kReceive:
      return take_message(rank, std::move(call));
    default:
      break;
  }
  const std::size_t place = own.calls.size();
  own.calls.push_back(std::move(call));
  bool all = true;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    all = all && !ranks_[r].calls.empty();
    if (ranks_[r].calls.size() <= place) continue;
    const NcclMessage &mine = own.calls[place].message, &theirs = ranks_[r].calls[place].message;
    if (same(mine, theirs)) continue;
    return fail(ncclInvalidUsage, "mismatched collectives: rank " + std::to_string(rank) +
                                      " called " + mine.describe() + ", rank " + std::to_string(r) +
                                      " called " + theirs.describe());
  }
  if (all) run_collective();
}

// REQUIRES: mutex_ held, and every rank has called it.
void NcclHub::run_collective() {
  std::vector<Call> calls;
  for (Rank& r : ranks_) {
    calls.push_back(std::move(r.calls.front()));
    r.calls.pop_front();
  }
  const NcclMessage& message = calls[0].message;
  std::vector<const NcclData*> inputs;
  for (const Call& call : calls) inputs.push_back(&call.data);
  NcclData result;
  if (message.reduces()) {
    result = nccl_fold(message.type, message.op, inputs);
  } else if (message.kind == NcclKind::kBroadcast) {
    result = calls[static_cast<std::size_t>(message.root)].data;
  } else {
    for (const NcclData* input : inputs) result.insert(result.end(), input->begin(), input->end());
  }
  const auto part = static_cast<std::ptrdiff_t>(message.count * nccl_size(message.type));
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const auto rank = static_cast<int>(r);
    if (message.kind == NcclKind::kReduceScatter) {
      const auto begin = result.begin() + rank * part;
      answer(rank, calls[r], NcclData(begin, begin + part));
    } else {
      const bool gets = message.kind != NcclKind::kReduce || rank == message.root;
      answer(rank, calls[r], gets ? result : NcclData());
    }
  }
}

// REQUIRES: mutex_ held. Sends and receives between two ranks are matched in their order.
void NcclHub::take_message(int rank, Call call) {
  const bool sends = call.message.kind == NcclKind::kSend;
  const std::pair<int, int> way =
      sends ? std::pair(rank, call.message.root) : std::pair(call.message.root, rank);
  (sends ? sends_ : receives_)[way].push_back(std::move(call));
  auto &out = sends_[way], &in = receives_[way];
  if (out.empty() || in.empty()) return;
  const Call from = std::move(out.front()), to = std::move(in.front());
  out.pop_front();
  in.pop_front();
  if (from.message.count != to.message.count || from.message.type != to.message.type) {
    return fail(ncclInvalidUsage, "mismatched messages: rank " + std::to_string(way.first) +
                                      " called " + from.message.describe() + ", rank " +
                                      std::to_string(way.second) + " called " +
                                      to.message.describe());
  }
  answer(way.first, from, {});
  answer(way.second, to, from.data);
}

// REQUIRES: mutex_ held.
void NcclHub::answer(int rank, const Call& call, const NcclData& data) {
  const Rank& to = ranks_[static_cast<std::size_t>(rank)];
  if (!to.here) return;
  NcclMessage message = call.message;
  message.bytes = data.size();
  nccl_write(to.socket, message, data.data());  // who is gone is noticed by its reader
}

// REQUIRES: mutex_ held.
void NcclHub::fail(ncclResult_t code, const std::string& text) {
  if (failed_) return;
  failed_ = true;
  const NcclData data(text.begin(), text.end());
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    answer(static_cast<int>(r), {{.kind = NcclKind::kError, .root = code}, {}}, data);
  }
}

// The connection has ended.
void NcclHub::leave(int rank) {
  const std::lock_guard lock(mutex_);
  Rank& own = ranks_[static_cast<std::size_t>(rank)];
  ::close(own.socket);
  own.here = false;
  if (!own.done) {
    fail(ncclRemoteError, "rank " + std::to_string(rank) + " closed its connection");
  }
  own.done = true;
}

}  // namespace tarn::emu

#endif  // TARN_HAVE_NCCL
