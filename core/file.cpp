// file.cpp - InputFile, OutputFile over POSIX calls; asking about paths without exceptions.
#include "tarn/core/file.h"

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tarn {
namespace {

namespace fs = std::filesystem;

// One call moves at most this much: Linux stops just below 2 GiB anyway.
constexpr uint64_t kChunk = uint64_t{1} << 30;

}  // namespace

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::vector<std::string> list_folder(const char* op, const std::string& folder) {
  std::error_code error;
  std::vector<std::string> paths;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    paths.push_back(it->path().string());
  }
  TARN_CHECK_AS(FileError, !error, op, ": cannot read folder ", folder, ": ", error.message());
  return paths;
}

namespace {
// N of a path that names this process's descriptor N; -1 for others.
int open_descriptor(std::string_view path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    int number = -1;
    const char* end = path.data() + path.size();
    const auto [stop, error] = std::from_chars(path.data() + folder.size(), end, number);
    if (error == std::errc() && stop == end) return number;
  }
  return -1;
}
}  // namespace

WriteTarget write_target(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const bool special =
      fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
  // An open file of this process may be a plain file, and must stay the same one.
  const bool stream = open_descriptor(path) >= 0;
  if (special || stream) return {path, false};
  fs::path target = path;
  constexpr int kMostLinks = 40;  // as in the kernel
  for (int i = 0; i < kMostLinks && fs::is_symlink(target, error); ++i) {
    const fs::path next = fs::read_symlink(target, error);
    if (error) break;
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  // Links in a circle: opening says so.
  return {target.string(), !fs::is_symlink(target, error)};
}

int open_in_place(const std::string& path) {
  // The same place in the file as the stream, which goes on behind.
  const int descriptor = open_descriptor(path);
  if (descriptor >= 0) return ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
}

std::string folder_of(const std::string& path) {
  const auto folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  const bool failed = ::fsync(fd) != 0 && errno == EIO;  // others: a file system that has no such
  ::close(fd);
  TARN_CHECK_AS(FileError, !failed, "cannot sync the folder ", folder, ": ", std::strerror(EIO));
}

std::error_code make_folders(const std::string& path) {
  std::error_code error;
  std::vector<std::string> missing;
  for (std::string p = path; !p.empty() && !fs::exists(p, error); p = fs::path(p).parent_path()) {
    missing.push_back(p);
  }
  error.clear();
  fs::create_directories(path, error);
  if (error) return error;
  for (const std::string& p : missing) sync_folder(folder_of(p));
  return {};
}

InputFile::InputFile(const char* op, std::string path) : op_(op), path_(std::move(path)) {
  // Not waiting for the writer of a pipe, which is refused below; plain files are read as ever.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  TARN_CHECK_AS(FileError, fd_ >= 0, op_, ": cannot open ", path_, ": ", std::strerror(errno));
  struct stat info {};
  const bool known = ::fstat(fd_, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    detail::fail<FileError>(op_, ": cannot open ", path_, ": ",
                            known && S_ISDIR(info.st_mode) ? "it is a folder" : "not a plain file");
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

InputFile::~InputFile() {
  ::close(fd_);
}

void InputFile::read(void* to, uint64_t bytes, std::string_view what) {
  const bool fits = position_ <= size_ && bytes <= size_ - position_;
  if (!fits) {
    fail("truncated: ", what, " needs ", bytes, " bytes at offset ", position_, "; the file has ",
         size_);
  }
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got =
        ::pread(fd_, out, bytes < kChunk ? bytes : kChunk, static_cast<off_t>(position_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read ", what, " at offset ", position_, ": ", std::strerror(errno));
    if (got == 0) fail("the file shrank while ", what, " was read at offset ", position_);
    out += got;
    bytes -= static_cast<uint64_t>(got);
    position_ += static_cast<uint64_t>(got);
  }
}

std::string read_file(const char* op, const std::string& path) {
  InputFile file(op, path);
  std::string bytes(file.size(), '\0');
  file.read(bytes.data(), bytes.size(), "the file");
  return bytes;
}

OutputFile::OutputFile(const char* op, std::string path) : op_(op), path_(std::move(path)) {
  static std::atomic<int> counter{0};
  const WriteTarget target = write_target(path_);
  target_ = target.path;
  if (!target.replace) {
    fd_ = open_in_place(target_);
    if (fd_ < 0) fail("write", errno);
    return;
  }
  const auto name = fs::path(target_).filename().string();
  temporary_ = folder_of(target_) + "/." + name + ".tmp-" + std::to_string(::getpid()) + "-" +
               std::to_string(counter++);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("write", errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* verb, int error) const {
  detail::fail<FileError>(op_, ": cannot ", verb, " ", path_, ": ", std::strerror(error),
                          " (at offset ", position_, ")");
}

void OutputFile::write(const void* from, uint64_t bytes) {
  const char* data = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(fd_, data, bytes < kChunk ? bytes : kChunk);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write", errno);
    data += put;
    bytes -= static_cast<uint64_t>(put);
    position_ += static_cast<uint64_t>(put);
  }
}

void OutputFile::commit() {
  const bool replaces = !temporary_.empty();
  if (::fsync(fd_) != 0 && replaces) fail("sync", errno);  // devices and pipes have no disk
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail("close", errno);
  if (!replaces) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("replace", errno);
  temporary_.clear();
  // The new name itself must survive a power cut as well.
  sync_folder(folder_of(target_));
}

}  // namespace tarn
