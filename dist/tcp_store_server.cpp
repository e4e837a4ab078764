// tcp_store_server.cpp - one thread that polls all clients of a TcpStore.
#include "tarn/dist/tcp_store_server.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tarn/dist/store.h"

namespace tarn::dist {
namespace {

void append_text(std::string& out, std::string_view text) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out.append(text);
}

}  // namespace

std::string store_greeting(int start) {
  const std::string number = std::to_string(start);
  return std::string(kStoreName) + std::string(10 - std::min<size_t>(10, number.size()), '0') +
         number + "\n";
}

TcpStoreServer::TcpStoreServer(int port, int start)
    : greeting_(store_greeting(start)), listener_(Socket::listen(port)) {
  port_ = listener_.port();
  TARN_CHECK_AS(DistError, ::pipe2(wake_pipe_, O_CLOEXEC | O_NONBLOCK) == 0,
                "store: cannot make a pipe: ", std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

TcpStoreServer::~TcpStoreServer() {
  [[maybe_unused]] const ssize_t n = ::write(wake_pipe_[1], "x", 1);
  thread_.join();
  ::close(wake_pipe_[0]);
  ::close(wake_pipe_[1]);
}

// Waits for work; returns -1 when the server is to end.
int TcpStoreServer::poll_all() {
  std::vector<pollfd> entries{{wake_pipe_[0], POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
  Clock::time_point next = Clock::time_point::max();
  for (const Client& c : clients_) {
    entries.push_back(
        {c.socket.fd(), static_cast<short>(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    if (c.waiting) next = std::min(next, c.deadline);
  }
  const bool forever = next == Clock::time_point::max();
  const int limit = forever ? -1 : static_cast<int>(time_left(next).count());
  if (::poll(entries.data(), entries.size(), limit) < 0 && errno != EINTR) return -1;
  if (entries[0].revents != 0) return -1;
  size_t i = 2;
  for (Client& c : clients_) {
    const short events = entries[i++].revents;
    if (events & (POLLIN | POLLHUP | POLLERR)) read(c);
    if (events & POLLOUT) write(c);
  }
  if (entries[1].revents != 0) accept_all();  // last: it adds to clients_
  return 0;
}

void TcpStoreServer::run() {
  while (poll_all() == 0) {
    const auto now = Clock::now();
    for (Client& c : clients_) {
      if (!c.dead && c.waiting && c.deadline <= now) {
        c.waiting.reset();
        reply(c, false, "");
        while (take_request(c)) {
        }
      }
    }
    clients_.remove_if([](const Client& c) { return c.dead; });
  }
}

void TcpStoreServer::accept_all() {
  for (;;) {
    Client client{Socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
                  {},
                  {},
                  false,
                  false,
                  {},
                  {}};
    if (!client.socket) return;
    clients_.push_back(std::move(client));
    clients_.back().out = greeting_;
    write(clients_.back());
  }
}

void TcpStoreServer::read(Client& client) {
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::recv(client.socket.fd(), buffer, sizeof buffer, 0);
    if (n > 0) {
      client.in.append(buffer, static_cast<size_t>(n));
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      break;
    } else {
      client.dead = true;
      return;
    }
  }
  if (!client.greeted) {
    if (client.in.size() < greeting_.size()) return;
    client.greeted = client.in.starts_with(greeting_);
    client.dead = !client.greeted;
    client.in.erase(0, greeting_.size());
  }
  while (!client.dead && take_request(client)) {
  }
}

void TcpStoreServer::write(Client& client) {
  while (!client.out.empty()) {
    const ssize_t n =
        ::send(client.socket.fd(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
    if (n > 0) {
      client.out.erase(0, static_cast<size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      client.dead = n == 0 || errno != EAGAIN;
      return;
    }
  }
}

// Executes the first whole request in the buffer; false if there is none yet.
bool TcpStoreServer::take_request(Client& client) {
  if (client.waiting) return false;  // answers keep the order of the questions
  const std::string& in = client.in;
  size_t at = 0;
  const auto number = [&](uint32_t& out) {
    if (in.size() - at < sizeof out) return false;
    std::memcpy(&out, in.data() + at, sizeof out);
    at += sizeof out;
    return true;
  };
  const auto text = [&](std::string& out) {
    uint32_t size;
    if (!number(size)) return false;
    client.dead = client.dead || size > kMaxStoreBytes;
    if (client.dead || in.size() - at < size) return false;
    out = in.substr(at, size);
    at += size;
    return true;
  };
  if (in.empty()) return false;
  const char op = in[at++];
  uint32_t limit_ms;
  std::string key, value;
  if (!number(limit_ms) || !text(key) || !text(value)) return false;
  client.in.erase(0, at);
  execute(client, op, limit_ms, std::move(key), std::move(value));
  return true;
}

void TcpStoreServer::execute(Client& client, char op, uint32_t limit_ms, std::string key,
                             std::string value) {
  const auto found = values_.find(key);
  switch (op) {
    case kStoreSet:
      values_[key] = std::move(value);
      wake(key);
      return reply(client, true, "");
    case kStoreErase:
      if (found == values_.end()) return reply(client, false, "");
      values_.erase(found);
      return reply(client, true, "");
    case kStoreAdd:
      try {
        std::string sum = found == values_.end() ? "" : found->second;
        detail::add_decimal(key, sum, std::stoll(value));
        values_[key] = sum;
        wake(key);
        return reply(client, true, sum);
      } catch (const std::exception& error) {
        return reply(client, false, error.what());
      }
    case kStoreGet:
      if (found != values_.end()) return reply(client, true, found->second);
      if (limit_ms == 0) return reply(client, false, "");
      client.deadline = Clock::now() + Millis(limit_ms);
      client.waiting = std::move(key);
      return;
    default:
      client.dead = true;
  }
}

void TcpStoreServer::reply(Client& client, bool found, std::string_view value) {
  client.out.push_back(found ? 1 : 0);
  append_text(client.out, value);
  write(client);
}

void TcpStoreServer::wake(const std::string& key) {
  for (Client& c : clients_) {
    if (c.dead || c.waiting != key) continue;
    c.waiting.reset();
    reply(c, true, values_[key]);
  }
}

}  // namespace tarn::dist
