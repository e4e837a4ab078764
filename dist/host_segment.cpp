// host_segment.cpp - the memory that the ranks of one host share.
#include "tarn/dist/host_segment.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tarn::dist {

Segment::Segment(const std::string& path, int size, bool create) : path_(path), size_(size) {
  const size_t n = static_cast<size_t>(size);
  bytes_ = n * sizeof(Farewell) + n * sizeof(Bell) + n * n * sizeof(Pair);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
  TARN_CHECK_AS(DistError, fd >= 0, "host channel: cannot open ", path, ": ", std::strerror(errno));
  named_ = create;
  // All of it now: a page that /dev/shm has no room for would end the process when it is touched.
  int error = create ? ::posix_fallocate(fd, 0, static_cast<off_t>(bytes_)) : 0;
  base_ =
      error == 0 ? ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (error == 0) error = errno;
  ::close(fd);
  if (base_ == MAP_FAILED) unlink();
  TARN_CHECK_AS(DistError, base_ != MAP_FAILED, "host channel: cannot map ", path, ": ",
                std::strerror(error));
  farewells_ = static_cast<Farewell*>(base_);
  bells_ = reinterpret_cast<Bell*>(farewells_ + n);
  pairs_ = reinterpret_cast<Pair*>(bells_ + n);
}

Segment::~Segment() {
  unlink();
  ::munmap(base_, bytes_);
}

void Segment::unlink() {
  if (std::exchange(named_, false)) ::unlink(path_.c_str());
}

}  // namespace tarn::dist
