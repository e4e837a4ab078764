// peer_process.cpp - process file descriptors (pidfd_open(2)).
#include "tarn/dist/peer_process.h"

#include <fstream>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tarn::dist {

std::string process_place() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = "";
  const ssize_t n = ::readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return boot + "/" + std::string(space, n > 0 ? static_cast<size_t>(n) : 0) + "/" +
         std::to_string(::geteuid());
}

PeerProcess::PeerProcess(pid_t pid) : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

PeerProcess::~PeerProcess() {
  if (fd_ >= 0) ::close(fd_);
}

bool PeerProcess::ended() const {
  pollfd entry{fd_, POLLIN, 0};
  return fd_ >= 0 && ::poll(&entry, 1, 0) > 0;
}

}  // namespace tarn::dist
