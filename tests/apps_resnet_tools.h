// apps_resnet_tools.h - tiny data sets for the trainer, and running its program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "temp_folder.h"
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tarn::test {

inline std::string big_endian(uint32_t v) {
  return {static_cast<char>(v >> 24), static_cast<char>(v >> 16), static_cast<char>(v >> 8),
          static_cast<char>(v)};
}

/// 28 x 28 pictures of two kinds, light above or light below, with some noise: what the labels 0
/// and 1 say.
inline void write_mnist(const TempFolder& folder, const std::string& name, uint32_t train,
                        uint32_t test) {
  uint32_t random = 1;
  for (const auto& [prefix, n] : {std::pair{"train", train}, std::pair{"t10k", test}}) {
    std::string images = big_endian(0x803) + big_endian(n) + big_endian(28) + big_endian(28);
    std::string labels = big_endian(0x801) + big_endian(n);
    for (uint32_t i = 0; i < n; ++i) {
      labels += static_cast<char>(i % 2);
      for (uint32_t p = 0; p < 28 * 28; ++p) {
        random = random * 1664525 + 1013904223;
        const bool light = (p < 14 * 28) == (i % 2 == 0);
        images += static_cast<char>((light ? 150 : 20) + random % 80);
      }
    }
    folder.write(name + "/" + prefix + "-images-idx3-ubyte", images);
    folder.write(name + "/" + prefix + "-labels-idx1-ubyte", labels);
  }
}

/// What a program printed and how it ended.
struct Ended {
  int code = -1;  ///< exit code; 128 + signal if one killed it
  std::string out, err;
};

/// A child process with its output in files of a folder.
class Process {
 public:
  /// file_limit: largest file it may write (RLIMIT_FSIZE), in bytes; 0: no limit.
  Process(const std::string& program, const std::vector<std::string>& arguments,
          const TempFolder& folder, rlim_t file_limit = 0)
      : out_(folder / "out.txt"), err_(folder / "err.txt") {
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    dup2(open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
    dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
    if (file_limit > 0) {
      const rlimit limit{file_limit, file_limit};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const { kill(pid_, number); }
  /// True until it has ended.
  bool running() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ > 0;
  }
  Ended wait() {
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = 0;
    const int code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    return {code, slurp(out_), slurp(err_)};
  }

 private:
  std::string out_, err_;
  pid_t pid_ = -1;
  int status_ = 0;
};

}  // namespace tarn::test
