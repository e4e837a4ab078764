// file.h - reading and writing binary files so that every failure names path, offset and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "tarn/core/error.h"

namespace tarn {

/// A file open for reading. Not thread-safe.
class InputFile {
 public:
  /// Throws FileError "OP: cannot open PATH: No such file or directory". `op` names the caller in
  /// all errors and must be a string literal.
  InputFile(const char* op, std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// Bytes in the file when it was opened.
  uint64_t size() const { return size_; }
  uint64_t position() const { return position_; }
  void seek(uint64_t position) { position_ = position; }
  /// Reads exactly `bytes` and moves on. `what` says what they were meant to be: "PATH: truncated:
  /// the pixels need 784 bytes at offset 16, the file has 500".
  void read(void* to, uint64_t bytes, std::string_view what);
  const std::string& path() const { return path_; }
  /// Throws FileError "OP: PATH: parts...".
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    detail::fail<FileError>(op_, ": ", path_, ": ", parts...);
  }

 private:
  const char* op_;
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  uint64_t position_ = 0;
};

/// A whole file as bytes.
std::string read_file(const char* op, const std::string& path);

/// Whether there is something, or a folder, at a path or where its links lead. What cannot be asked
/// about is not there: a link to itself, a name that is too long, one behind a locked folder.
bool is_there(const std::string& path);
bool is_folder(const std::string& path);
/// The paths of what is in a folder, in no order. Throws FileError "OP: cannot read folder PATH:
/// Permission denied".
std::vector<std::string> list_folder(const char* op, const std::string& folder);

/// Where a file written to a path belongs: at the end of its links, so that they stay. Something
/// there that is no plain file (a device, a pipe, a terminal) is written to and not replaced.
struct WriteTarget {
  std::string path;
  bool replace = true;
};
WriteTarget write_target(const std::string& path);
/// Opens for writing what is not replaced. Returns -1 and sets errno if it cannot.
int open_in_place(const std::string& path);

/// The folder that a path is in; "." for a bare name.
std::string folder_of(const std::string& path);
/// Makes names that were added to the folder, or taken from it, survive a power cut, where its file
/// system can. Throws FileError if the disk fails.
void sync_folder(const std::string& folder);
/// Makes a folder and those it is in, and syncs them where one was made. Returns why it cannot.
std::error_code make_folders(const std::string& path);

/// A file being replaced: bytes go to a temporary name in the same folder; commit() syncs and
/// renames. Without commit() the old file stays and the temporary one is removed. A device or a
/// pipe gets the bytes at once. Not thread-safe.
class OutputFile {
 public:
  OutputFile(const char* op, std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Throws FileError "OP: cannot write PATH: No space left on device (at offset N)".
  void write(const void* from, uint64_t bytes);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  uint64_t position() const { return position_; }
  /// The data is on disk under its final name when this returns.
  void commit();

 private:
  [[noreturn]] void fail(const char* verb, int error) const;
  const char* op_;
  std::string path_;
  std::string target_, temporary_;  // no temporary one for what is not replaced
  int fd_ = -1;
  uint64_t position_ = 0;
};

}  // namespace tarn
