// socket.h - one TCP connection with a deadline on every step.
#pragma once

#include <cstddef>
#include <string>

#include "tarn/dist/error.h"

namespace tarn::dist {

/// Owns a file descriptor. Not thread-safe.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;

  /// Listens on a port of all interfaces (0: any free one). Throws DistError, e.g. "port 29500 is
  /// in use".
  static Socket listen(int port);
  /// Tries until the deadline: the other side may start later. Throws TimeoutError with the address
  /// and the last reason.
  static Socket connect(const std::string& host, int port, Clock::time_point deadline);

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// The port that this socket is bound to.
  int port() const;
  /// Moves exactly `bytes`. Return false if the other side is gone or the deadline has passed.
  bool send(const void* data, size_t bytes, Clock::time_point deadline);
  bool receive(void* data, size_t bytes, Clock::time_point deadline);
  void close();

 private:
  bool ready(short events, Clock::time_point deadline) const;
  int fd_ = -1;
};

/// A port that is free now, for a group that starts on this host.
int free_port();

}  // namespace tarn::dist
