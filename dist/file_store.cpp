// file_store.cpp - a store in a folder.
#include "tarn/dist/file_store.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace tarn::dist {
namespace {

constexpr Millis kLook{5};
constexpr size_t kMostName = 200;  // file systems take 255, and set() appends something

// Held while a number is read, changed and written; other processes wait.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder) {
    const std::string path = folder / ".lock";
    fd_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    TARN_CHECK_AS(FileError, fd_ >= 0, "store: cannot open ", path, ": ", std::strerror(errno));
    int error = 0;
    do {
      error = ::flock(fd_, LOCK_EX) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == 0) return;
    ::close(fd_);
    tarn::detail::fail<FileError>("store: cannot lock ", path, ": ", std::strerror(error),
                                  "; is it on a file system without locks?");
  }
  ~FolderLock() { ::close(fd_); }

 private:
  int fd_;
};

// Any key as a file name: what is not a letter, digit, '-' or '_' becomes %hex.
std::string escape(const std::string& key) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "k-";
  for (unsigned char c : key) {
    if (std::isalnum(c) || c == '-' || c == '_') {
      out += static_cast<char>(c);
    } else {
      out += {'%', kHex[c >> 4], kHex[c & 15]};
    }
  }
  return out;
}

}  // namespace

FileStore::FileStore(std::filesystem::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  TARN_CHECK_AS(FileError, !error, "store: cannot make the folder ", folder_.string(), ": ",
                error.message());
}

std::filesystem::path FileStore::file(const std::string& key) const {
  std::filesystem::path path = folder_;
  std::string name = escape(key);
  // Of a long key all but the end are folders; no key has a '+' of its own.
  for (; name.size() > kMostName; name.erase(0, kMostName)) path /= name.substr(0, kMostName) + "+";
  return path / name;
}

void FileStore::set(const std::string& key, const std::string& value) {
  static std::atomic<int> counter{0};
  const auto path = file(key);
  std::error_code error;
  if (path.parent_path() != folder_) std::filesystem::create_directories(path.parent_path(), error);
  auto fresh = path;
  fresh += "." + std::to_string(::getpid()) + "." + std::to_string(counter++);
  std::ofstream out(fresh, std::ios::binary);
  out.write(value.data(), static_cast<std::streamsize>(value.size()));
  out.close();
  TARN_CHECK_AS(FileError, out.good() && ::rename(fresh.c_str(), path.c_str()) == 0,
                "store: cannot write ", path.string(), ": ", std::strerror(errno));
}

std::optional<std::string> FileStore::try_get(const std::string& key) {
  std::ifstream in(file(key), std::ios::binary);
  if (!in) return {};
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

int64_t FileStore::add(const std::string& key, int64_t delta) {
  const FolderLock lock(folder_);
  std::string value = try_get(key).value_or("");
  const int64_t sum = detail::add_decimal(key, value, delta);
  set(key, value);
  return sum;
}

bool FileStore::erase(const std::string& key) {
  return ::unlink(file(key).c_str()) == 0;
}

std::optional<std::string> FileStore::wait_for(const std::string& key, Millis limit) {
  const auto deadline = Clock::now() + limit;
  for (;;) {
    auto value = try_get(key);
    const Millis left = time_left(deadline);
    if (value || left <= Millis(0)) return value;
    std::this_thread::sleep_for(std::min(kLook, left));
  }
}

}  // namespace tarn::dist
