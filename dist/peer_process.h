// peer_process.h - whether the process of another rank of this host still lives.
#pragma once

#include <string>
#include <utility>

#include <sys/types.h>

namespace tarn::dist {

/// Equal for processes that see each other's numbers: the boot, the space of process numbers, the
/// user.
std::string process_place();

/// A process that this one watches. It may have ended before, or never been there.
class PeerProcess {
 public:
  PeerProcess() = default;
  explicit PeerProcess(pid_t pid);
  ~PeerProcess();
  PeerProcess(PeerProcess&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PeerProcess& operator=(PeerProcess&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  /// False if there is nothing to watch.
  explicit operator bool() const { return fd_ >= 0; }
  /// True once it has ended, also before anybody waits for it.
  bool ended() const;

 private:
  int fd_ = -1;
};

}  // namespace tarn::dist
