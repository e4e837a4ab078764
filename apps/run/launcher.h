// launcher.h - starts the ranks of this host, watches them, and ends them together.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/types.h>

#include "tarn/apps/run/settings.h"
#include "tarn/apps/run/watcher.h"

namespace tarn::apps {

/// Cores this process may use.
int cores_here();

/// The last lines of a file, at most `lines` and a few KiB.
std::string tail(const std::filesystem::path& path, int lines);

/// Rank 0 prints to this terminal; the output of every other rank goes to a file of its own. Each
/// rank leads a process group, so that what it starts ends with it, also where tarn-run is killed.
class Launcher {
 public:
  explicit Launcher(RunSettings settings);
  /// Kills what still runs. A temporary folder of logs stays if a message named it, a restart's
  /// too; else it goes.
  ~Launcher();
  Launcher(const Launcher&) = delete;

  /// Runs all ranks to their end, with restarts. Returns 0, or the exit code of the rank that
  /// failed first (128 + signal if one killed it), which it reports on standard error; 128 + signal
  /// as well if the ranks ended by one that tarn-run passed on. A second signal kills them, but not
  /// what only repeats the first: hang-ups, and a SIGTERM within kEchoSeconds. A rank that even
  /// SIGKILL does not end is named and left after 20 s. Throws std::runtime_error that
  /// names a log which cannot be opened.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    int rank = 0;
    pid_t pid = 0;  // 0 once it has ended
    int status = 0;
    int order = -1;  // in which the ranks failed
    std::filesystem::path log;
    bool said = false;  // that it had ended while others went on
    bool left = false;  // it runs, though it was killed
    bool failed() const { return pid == 0 && status != 0; }
    bool done() const { return pid == 0 && status == 0; }
  };

  void start(int attempt);
  pid_t start_rank(int log, const std::vector<std::string>& variables);
  std::vector<std::string> variables(int local_rank, int port, int attempt) const;
  void supervise();
  void reap();
  void signal_all(int number);
  bool is_echo(int number, Clock::time_point now) const;
  void pass_on(int number, Clock::time_point now);
  bool was_told() const;
  void leave_running();
  int running() const;
  const Rank* first_failure() const;
  bool all_refused() const;
  void say_who_ended();
  bool was_told_to_end(const Rank& rank) const;
  void report_interrupt();
  void report(const Rank& rank);

  Watcher watcher_;
  RunSettings settings_;
  std::string program_;
  int local_size_;
  std::filesystem::path logs_;
  bool temporary_logs_;
  std::vector<Rank> ranks_;
  sigset_t watched_{}, before_{};
  int signal_ = 0;  // the first that tarn-run got and passed on
  Clock::time_point signalled_;
  bool interrupted_ = false;  // by it, before any rank failed
  bool logs_named_ = false;   // in what was printed
  int failures_ = 0;
};

}  // namespace tarn::apps
