// socket.cpp - one TCP connection with a deadline on every step.
#include "tarn/dist/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tarn::dist {
namespace {

constexpr Millis kRetry{20};
constexpr Millis kAddressPatience{3000};
constexpr Millis kLongestPoll{1000000000};  // poll() counts in an int

// Children that are started later must not inherit the connection.
constexpr int kType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

// errno of a connection under way, as soon as it is known; ETIMEDOUT after the deadline.
int connect_result(int fd, Clock::time_point deadline) {
  pollfd entry{fd, POLLOUT, 0};
  if (::poll(&entry, 1, static_cast<int>(time_left(deadline).count())) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

void no_delay(int fd) {
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Socket Socket::listen(int port) {
  const int one = 1, zero = 0;
  int error = 0;
  for (int family : {AF_INET6, AF_INET}) {  // a host may be without IPv6
    Socket s(::socket(family, kType, 0));
    if (!s) {
      error = errno;
      continue;
    }
    ::setsockopt(s.fd_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in6 six{};
    sockaddr_in four{};
    six.sin6_family = AF_INET6;
    four.sin_family = AF_INET;
    six.sin6_port = four.sin_port = htons(static_cast<uint16_t>(port));
    if (family == AF_INET6) ::setsockopt(s.fd_, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    const int bound = family == AF_INET6
                          ? ::bind(s.fd_, reinterpret_cast<sockaddr*>(&six), sizeof six)
                          : ::bind(s.fd_, reinterpret_cast<sockaddr*>(&four), sizeof four);
    if (bound == 0 && ::listen(s.fd_, 1024) == 0) return s;
    error = errno;
    if (error == EADDRINUSE) break;
  }
  TARN_CHECK_AS(DistError, error != EADDRINUSE, "store: port ", port,
                " of this host is in use; choose another with MASTER_PORT or --master-port");
  tarn::detail::fail<DistError>("store: cannot listen on port ", port, ": ", std::strerror(error));
}

Socket Socket::connect(const std::string& host, int port, Clock::time_point deadline) {
  const auto start = Clock::now();
  std::string reason;
  do {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (code != 0) reason = ::gai_strerror(code);
    for (const addrinfo* a = found; a; a = a->ai_next) {
      Socket s(::socket(a->ai_family, kType, 0));
      int error = !s || ::connect(s.fd_, a->ai_addr, a->ai_addrlen) != 0 ? errno : 0;
      // A name may have an address that swallows everything, and a good one after it.
      const auto patience = std::min(deadline, Clock::now() + kAddressPatience);
      if (error == EINPROGRESS) error = connect_result(s.fd_, patience);
      if (error == 0) {
        ::freeaddrinfo(found);
        no_delay(s.fd_);
        return s;
      }
      reason = std::strerror(error);
    }
    if (found) ::freeaddrinfo(found);
    std::this_thread::sleep_for(std::min(kRetry, time_left(deadline)));
  } while (time_left(deadline) > Millis(0));
  const auto waited = std::chrono::round<Millis>(Clock::now() - start);
  tarn::detail::fail<TimeoutError>("store: cannot reach rank 0 at ", host, ":", port, " within ",
                                   duration_text(waited), " (", reason,
                                   "); is it running, and are MASTER_ADDR and MASTER_PORT right?");
}

int Socket::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

bool Socket::ready(short events, Clock::time_point deadline) const {
  for (;;) {
    pollfd entry{fd_, events, 0};
    const Millis left = time_left(deadline);
    const int n = ::poll(&entry, 1, static_cast<int>(std::min(left, kLongestPoll).count()));
    if (n > 0) return true;
    const bool again = n == 0 ? left > kLongestPoll : errno == EINTR;
    if (!again) return false;
  }
}

bool Socket::send(const void* data, size_t bytes, Clock::time_point deadline) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(fd_, at, bytes, MSG_NOSIGNAL);
    if (n > 0) {
      at += n;
      bytes -= static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      if (!ready(POLLOUT, deadline)) return false;
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool Socket::receive(void* data, size_t bytes, Clock::time_point deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::recv(fd_, at, bytes, 0);
    if (n > 0) {
      at += n;
      bytes -= static_cast<size_t>(n);
    } else if (n < 0 && errno == EAGAIN) {
      if (!ready(POLLIN, deadline)) return false;
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

int free_port() {
  return Socket::listen(0).port();
}

}  // namespace tarn::dist
