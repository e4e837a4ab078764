// host_segment.cpp - the memory that the ranks of one host share.
#include "tarn/dist/host_segment.h"

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tarn::dist {

Segment::Segment(const std::string& path, int size, bool create) : path_(path), size_(size) {
  const size_t n = static_cast<size_t>(size);
  bytes_ = n * sizeof(Farewell) + n * n * sizeof(Pair);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
  TARN_CHECK_AS(DistError, fd >= 0, "host channel: cannot open ", path, ": ", std::strerror(errno));
  const bool sized = !create || ::ftruncate(fd, static_cast<off_t>(bytes_)) == 0;
  base_ = sized ? ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  const int error = errno;
  ::close(fd);
  if (base_ == MAP_FAILED && create) unlink();
  TARN_CHECK_AS(DistError, base_ != MAP_FAILED, "host channel: cannot map ", path, ": ",
                std::strerror(error));
  farewells_ = static_cast<Farewell*>(base_);
  pairs_ = reinterpret_cast<Pair*>(farewells_ + n);
}

Segment::~Segment() {
  ::munmap(base_, bytes_);
}

void Segment::unlink() {
  ::unlink(path_.c_str());
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, Millis limit) {
  const timespec time{static_cast<time_t>(limit.count() / 1000),
                      static_cast<long>(limit.count() % 1000 * 1000000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tarn::dist
