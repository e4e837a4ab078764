// file.cpp - writing files so that nothing is lost and every failure names the path and the reason.
#include "tarn/apps/common/file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "tarn/core/file.h"

namespace tarn::apps {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error) {
  throw std::runtime_error(std::string("cannot ") + what + " " + path.string() + ": " +
                           std::strerror(error));
}

// Returns 0, or errno.
int write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// "No space left on device" in OutputFile's "OP: cannot VERB PATH: REASON (at offset N)".
std::string reason_in(const std::string& message, const std::string& path) {
  const size_t at = message.find(path + ": ");
  if (at == std::string::npos) return message;
  const size_t begin = at + path.size() + 2;
  return message.substr(begin, message.rfind(" (at offset ") - begin);
}

}  // namespace

void write_file(const std::filesystem::path& path, std::string_view content) {
  try {
    OutputFile file("write", path.string());
    file.write(content);
    file.commit();
  } catch (const FileError& e) {
    throw std::runtime_error("cannot write " + path.string() + ": " +
                             reason_in(e.what(), path.string()));
  }
}

std::string whole_path(const std::string& path) {
  if (!is_there(path)) return path;
  return std::filesystem::absolute(path).lexically_normal().string();
}

void make_folder(const std::filesystem::path& path) {
  const std::error_code error = make_folders(path.string());
  if (error) fail("create folder", path, error.value());
}

LineFile::LineFile(std::filesystem::path path)
    : path_(std::move(path)),
      fd_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (fd_ < 0) fail("open", path_, errno);
}

LineFile::LineFile(LineFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

LineFile::~LineFile() {
  if (fd_ >= 0) close(fd_);
}

void LineFile::append(std::string_view line) {
  if (const int error = write_all(fd_, std::string(line) + "\n")) fail("write", path_, error);
}

bool LineFile::lock(std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + patience;;) {
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void LineFile::sync() {
  fdatasync(fd_);
}

}  // namespace tarn::apps
