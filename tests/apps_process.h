// apps_process.h - running a program: its output, its end, signals to it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "temp_folder.h"
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tarn::test {

/// The path of a program of this build: they stand beside the test that asks.
inline std::string built(const std::string& program) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / program;
}

/// The bytes of a file that must be there and not be empty: two missing ones are equal, too.
inline std::string content(const std::string& path) {
  std::string bytes = slurp(path);
  EXPECT_FALSE(bytes.empty()) << path;
  return bytes;
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

  /// Nothing once it has ended: the number 0 would mean this process and its group.
  void signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
  }
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
