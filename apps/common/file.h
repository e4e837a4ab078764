// file.h - writing files so that nothing is lost and every failure names the path and the reason.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>

namespace tarn::apps {

/// Writes a whole file: to a temporary name beside it, synced, then renamed, so that the old
/// content stays if anything fails. Links stay, and a device or a pipe is written to. Throws
/// std::runtime_error "cannot write PATH: No space left on device".
void write_file(const std::filesystem::path& path, std::string_view content);

/// The path from the root on, where there is something at it: a run may go on from elsewhere. Else
/// as it was given, as errors say it.
std::string whole_path(const std::string& path);

/// Makes a folder and those above it. Throws "cannot create folder PATH: Permission denied".
void make_folder(const std::filesystem::path& path);

/// A file that grows by whole lines; each is in the kernel's hands when append() returns, so a
/// crash loses none. Not thread-safe.
class LineFile {
 public:
  /// Opens for appending, creating the file if need be. Throws "cannot open PATH: ...".
  explicit LineFile(std::filesystem::path path);
  ~LineFile();
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&& other) = delete;

  /// Writes line and a line feed. Throws "cannot write PATH: ...".
  void append(std::string_view line);
  /// What was appended survives a power cut, where the file system can.
  void sync();
  /// Keeps the file for this process while the object lives. False if another still has it after
  /// this time; true where the file system has no locks.
  bool lock(std::chrono::milliseconds patience);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_;
};

}  // namespace tarn::apps
