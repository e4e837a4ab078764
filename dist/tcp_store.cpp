// tcp_store.cpp - the client side of the TCP store.
#include "tarn/dist/tcp_store.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tarn/dist/tcp_store_server.h"

namespace tarn::dist {
namespace {

// Longest time one question holds the connection, so that other threads get their turn.
constexpr Millis kSlice{100};

}  // namespace

TcpStore::TcpStore(const TcpStoreOptions& options)
    : host_(options.host), port_(options.port), start_(options.start), patience_(options.patience) {
  TARN_CHECK_AS(ValueError,
                options.port >= 0 && options.port < 65536 && (options.server || options.port > 0),
                "store: the port must be in [1, 65535]; got ", options.port);
  if (options.server) {
    server_ = std::make_unique<TcpStoreServer>(options.port, start_);
    port_ = server_->port();
  }
  connect(Clock::now() + options.timeout);
}

// Where a job is started anew on several hosts, rank 0 of the start before may not have ended yet.
void TcpStore::connect(Clock::time_point deadline) {
  const std::string mine = store_greeting(start_);
  for (;;) {
    // The server's own process need not find itself under the name the others use.
    socket_ = Socket::connect(server_ ? "127.0.0.1" : host_, port_, deadline);
    std::string greeting(mine.size(), '\0');
    const bool tarn = socket_.send(mine.data(), mine.size(), deadline) &&
                      socket_.receive(greeting.data(), greeting.size(), deadline) &&
                      greeting.starts_with(kStoreName);
    TARN_CHECK_AS(DistError, tarn, "store: what listens at ", host_, ":", port_,
                  " is no tarn store; is MASTER_PORT used by another program?");
    if (greeting == mine) return;
    socket_.close();
    TARN_CHECK_AS(TimeoutError, time_left(deadline) > kSlice, "store: rank 0 at ", host_, ":",
                  port_, " is of another start of the job (TORCHELASTIC_RESTART_COUNT ",
                  std::atoi(greeting.c_str() + kStoreName.size()), ", here ", start_, ")");
    std::this_thread::sleep_for(kSlice);
  }
}

TcpStore::~TcpStore() = default;

std::string TcpStore::describe() const {
  return "TCP store at " + host_ + ":" + std::to_string(port_);
}

TcpStore::Reply TcpStore::ask(char op, const std::string& key, const std::string& value,
                              Millis limit) {
  TARN_CHECK_AS(ValueError, key.size() + value.size() < kMaxStoreBytes, "store: key \"",
                key.substr(0, 100), "\": at most 64 MiB; got ", value.size(), " bytes");
  std::string request(1, op);
  const auto number = [&](size_t n) {
    const uint32_t small = static_cast<uint32_t>(n);
    request.append(reinterpret_cast<const char*>(&small), sizeof small);
  };
  number(static_cast<size_t>(limit.count()));
  number(key.size());
  request += key;
  number(value.size());
  request += value;

  // Who waits for a key asks again at once, and without a turn would always be first.
  std::unique_lock turn(turn_);
  const std::lock_guard lock(mutex_);
  turn.unlock();
  const auto deadline = Clock::now() + patience_ + limit;
  Reply reply;
  char found = 0;
  uint32_t size = 0;
  bool ok = socket_ && socket_.send(request.data(), request.size(), deadline) &&
            socket_.receive(&found, 1, deadline) && socket_.receive(&size, sizeof size, deadline) &&
            size <= kMaxStoreBytes;
  if (ok) {
    reply.found = found != 0;
    reply.value.resize(size);
    ok = socket_.receive(reply.value.data(), size, deadline);
  }
  if (!ok) socket_.close();  // half a reply may be left in it
  TARN_CHECK_AS(DistError, ok, "store: lost rank 0, which serves the ", describe(), ", at key \"",
                key, "\"; it has ended or its host is gone");
  return reply;
}

void TcpStore::set(const std::string& key, const std::string& value) {
  ask(kStoreSet, key, value, Millis(0));
}

std::optional<std::string> TcpStore::try_get(const std::string& key) {
  return wait_for(key, Millis(0));
}

int64_t TcpStore::add(const std::string& key, int64_t delta) {
  const Reply reply = ask(kStoreAdd, key, std::to_string(delta), Millis(0));
  TARN_CHECK_AS(ValueError, reply.found, reply.value);
  return std::stoll(reply.value);
}

bool TcpStore::erase(const std::string& key) {
  return ask(kStoreErase, key, "", Millis(0)).found;
}

std::optional<std::string> TcpStore::wait_for(const std::string& key, Millis limit) {
  const auto deadline = Clock::now() + limit;
  for (;;) {
    const Millis left = time_left(deadline);
    Reply reply = ask(kStoreGet, key, "", std::clamp(left, Millis(0), kSlice));
    if (reply.found) return std::move(reply.value);
    if (left <= kSlice) return {};
  }
}

}  // namespace tarn::dist
