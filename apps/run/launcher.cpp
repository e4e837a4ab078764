// launcher.cpp - starts the ranks of this host, watches them, and ends them together.
#include "tarn/apps/run/launcher.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tarn/apps/common/file.h"
#include "tarn/apps/common/interrupt.h"
#include "tarn/apps/common/ranks.h"
#include "tarn/dist/socket.h"

extern char** environ;

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;
constexpr int kDefaultPort = 29500;
// Ranks that lost another end by themselves, with an error that says so; they get this long.
constexpr std::chrono::seconds kOwnEnd{2};
// Ranks end one after another, and rank 0 may have something to write; what takes longer is said.
constexpr std::chrono::seconds kQuietEnd{3};
// A process that SIGKILL does not end is held by the kernel: a file system or a device is gone.
constexpr std::chrono::seconds kKillPatience{20};
constexpr std::chrono::seconds kEcho{kEchoSeconds};

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

fs::path temporary_folder() {
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  if (error) {
    std::string what = "/tmp";
    // The last of them that is set counts.
    for (const char* name : {"TEMPDIR", "TEMP", "TMP", "TMPDIR"}) {
      if (const char* value = std::getenv(name)) what = std::string(name) + "=" + value;
    }
    throw UsageError(what + " is not a folder; pass --log-dir");
  }
  std::string pattern = (base / "tarn-run-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) {
    throw std::runtime_error("cannot make a folder in " + base.string() + ": " +
                             std::strerror(errno) + "; pass --log-dir");
  }
  return pattern;
}

// Closed in the ranks, but where it becomes their output; -1 for rank 0, which has no log.
int open_log(const fs::path& path) {
  if (path.empty()) return -1;
  const int log = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (log < 0) {
    throw std::runtime_error("cannot open the log " + path.string() + ": " +
                             (errno == EISDIR ? "it is a folder" : std::strerror(errno)));
  }
  return log;
}

timespec time_until(std::chrono::steady_clock::time_point when) {
  using namespace std::chrono;
  const auto left = std::max(nanoseconds(0), nanoseconds(when - steady_clock::now()));
  const auto whole = duration_cast<seconds>(left);
  return {static_cast<time_t>(whole.count()), static_cast<long>((left - whole).count())};
}

// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void become(const char* program, char* const* arguments, char* const* variables,
                         int log, const sigset_t& mask, pid_t parent) {
  ::setpgid(0, 0);
  // That group is not the terminal's: under "stty tostop" rank 0's first word would stop it.
  ::signal(SIGTTOU, SIG_IGN);
  ::signal(SIGPIPE, SIG_DFL);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // tarn-run ended meanwhile
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  if (log >= 0) {
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
  }
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execve(program, arguments, variables);
  const char* why = std::strerror(errno);
  [[maybe_unused]] ssize_t n = ::write(STDERR_FILENO, "tarn-run: cannot run the program: ", 34);
  n = ::write(STDERR_FILENO, why, std::strlen(why));
  n = ::write(STDERR_FILENO, "\n", 1);
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& t : texts) out.push_back(t.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

int cores_here() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Launcher::Launcher(RunSettings settings)
    : settings_(std::move(settings)),
      program_(find_program(settings_.command.at(0))),
      local_size_(local_ranks(settings_)),
      temporary_logs_(settings_.log_dir.empty()) {
  if (temporary_logs_) {
    logs_ = temporary_folder();
  } else {
    logs_ = settings_.log_dir;
    make_folder(logs_);
  }
  ::signal(SIGCHLD, SIG_DFL);  // who inherits it ignored never hears how a child ended
  ::signal(SIGPIPE, SIG_IGN);  // nobody reads what this says: no reason to leave the ranks
  sigemptyset(&watched_);
  for (int number : {SIGCHLD, SIGINT, SIGTERM, SIGQUIT}) sigaddset(&watched_, number);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&watched_, SIGHUP);  // ignored: under nohup
  ::sigprocmask(SIG_BLOCK, &watched_, &before_);
}

Launcher::~Launcher() {
  signal_all(SIGKILL);
  const auto patience = Clock::now() + kKillPatience;
  for (reap(); running() > 0 && Clock::now() < patience; reap()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  std::error_code error;
  if (temporary_logs_ && !logs_named_) fs::remove_all(logs_, error);
}

std::vector<std::string> Launcher::variables(int local_rank, int port, int attempt) const {
  const int64_t rank = settings_.node_rank * local_size_ + local_rank;
  std::vector<std::pair<std::string, std::string>> set = {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(settings_.nodes * local_size_)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(local_size_)},
      {"GROUP_RANK", std::to_string(settings_.node_rank)},
      {"MASTER_ADDR", settings_.master_addr.empty() ? "127.0.0.1" : settings_.master_addr},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(settings_.max_restarts)},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TARN_FLIGHT_DIR", fs::absolute(logs_).string()}};
  if (!std::getenv("OMP_NUM_THREADS")) {
    set.emplace_back("OMP_NUM_THREADS", std::to_string(std::max(1, cores_here() / local_size_)));
  }
  std::vector<std::string> all;
  for (char** e = environ; *e; ++e) {
    const std::string entry = *e, name = entry.substr(0, entry.find('='));
    const bool replaced =
        std::any_of(set.begin(), set.end(), [&](const auto& pair) { return pair.first == name; });
    if (!replaced) all.push_back(entry);
  }
  for (const auto& [name, value] : set) all.push_back(name + "=" + value);
  return all;
}

pid_t Launcher::start_rank(int log, const std::vector<std::string>& environment) {
  std::vector<std::string> command = settings_.command, variables = environment;
  const auto arguments = pointers(command), values = pointers(variables);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error(std::string("cannot start a rank: ") + strerror(errno));
  if (child == 0) {
    become(program_.c_str(), arguments.data(), values.data(), log, before_, parent);
  }
  ::setpgid(child, child);  // in both: whoever comes first
  watcher_.add(child);
  return child;
}

void Launcher::start(int attempt) {
  const bool one_host = settings_.nodes == 1;
  const int port = settings_.master_port ? static_cast<int>(*settings_.master_port)
                   : one_host            ? dist::free_port()
                                         : kDefaultPort;
  for (const auto& entry : fs::directory_iterator(logs_)) {
    // Of an earlier attempt, or an earlier run with the same --log-dir.
    if (entry.path().filename().string().starts_with("flight-")) fs::remove(entry.path());
  }
  if (attempt == 0) fs::remove(logs_ / kRunFolderNote);  // of an earlier run
  ranks_.assign(static_cast<size_t>(local_size_), {});
  failures_ = 0;
  for (int i = 0; i < local_size_; ++i) {
    Rank& r = ranks_[static_cast<size_t>(i)];
    r.rank = static_cast<int>(settings_.node_rank) * local_size_ + i;
    const std::string again = attempt > 0 ? ".restart-" + std::to_string(attempt) : "";
    if (r.rank != 0) r.log = logs_ / ("rank-" + std::to_string(r.rank) + again + ".log");
  }
  std::vector<int> logs;  // all of them before any rank runs
  for (const Rank& r : ranks_) logs.push_back(open_log(r.log));
  for (int i = 0; i < local_size_; ++i) {
    const auto at = static_cast<size_t>(i);
    ranks_[at].pid = start_rank(logs[at], variables(i, port, attempt));
    if (logs[at] >= 0) ::close(logs[at]);
  }
}

int Launcher::running() const {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(),
                                        [](const Rank& r) { return r.pid != 0 && !r.left; }));
}

void Launcher::signal_all(int number) {
  for (const Rank& r : ranks_) {
    if (r.pid != 0) ::kill(-r.pid, number);
  }
}

void Launcher::reap() {
  std::vector<Rank*> ended;
  for (Rank& r : ranks_) {
    if (r.pid == 0 || ::waitpid(r.pid, &r.status, WNOHANG) != r.pid) continue;
    r.left = false;
    ::kill(-r.pid, SIGKILL);  // what the rank started and left behind
    watcher_.remove(r.pid);
    r.pid = 0;
    if (r.failed()) ended.push_back(&r);
  }
  // Of those that ended between two looks, one that was killed is the cause, not the consequence.
  std::stable_sort(ended.begin(), ended.end(), [](const Rank* a, const Rank* b) {
    return WIFSIGNALED(a->status) > WIFSIGNALED(b->status);
  });
  for (Rank* r : ended) r->order = failures_++;
}

// What ends a job often signals it more than once: a lost terminal, timeout(1), managers of
// services.
bool Launcher::is_echo(int number, Clock::time_point now) const {
  return signal_ != 0 && (number == SIGHUP || (number == SIGTERM && now - signalled_ <= kEcho));
}

// The first signal lets programs save and end; a second one is for impatience.
void Launcher::pass_on(int number, Clock::time_point now) {
  signal_all(signal_ == 0 ? number : SIGKILL);
  if (signal_ != 0) return;
  interrupted_ = failures_ == 0;
  signalled_ = now;
  signal_ = number;
}

void Launcher::leave_running() {
  for (Rank& r : ranks_) {
    if (r.pid == 0 || r.left) continue;
    std::fprintf(stderr,
                 "tarn-run: rank %d (process %d) goes on although it was killed: the kernel holds "
                 "it, as it does while a file system or a device does not answer; it is left\n",
                 r.rank, static_cast<int>(r.pid));
    r.left = true;
    r.status = SIGKILL;
    r.order = failures_++;
  }
}

// Whether what has ended so far ended as the signal that was passed on made it: no failure.
bool Launcher::was_told() const {
  const Rank* first = first_failure();
  return first && was_told_to_end(*first);
}

// Until all ranks have ended. After a failure or a signal, those that stay are asked, then killed.
void Launcher::supervise() {
  const auto length = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const auto grace = length(settings_.grace), interval = length(settings_.monitor_interval);
  const auto never = Clock::time_point::max();
  Clock::time_point ask = never, kill = never, give_up = never, say = never;
  bool failing = false;
  while (running() > 0) {
    const timespec pause = time_until(std::min({Clock::now() + interval, ask, kill, say}));
    const int number = ::sigtimedwait(&watched_, nullptr, &pause);
    const auto now = Clock::now();
    reap();
    if (number > 0 && number != SIGCHLD && !is_echo(number, now)) {
      pass_on(number, now);
      kill = std::min(kill, now + std::max(grace, Clock::duration(std::chrono::seconds(30))));
    }
    const bool ended = std::any_of(ranks_.begin(), ranks_.end(),
                                   [](const Rank& r) { return r.done() && !r.said; });
    if (ended && say == never) say = now + kQuietEnd;
    if (now >= say && running() > 0) {
      say_who_ended();
      say = never;
    }
    if (failures_ > 0 && !failing && !was_told()) {
      failing = true;
      ask = now + kOwnEnd;
    }
    if (now >= ask) {
      signal_all(SIGTERM);
      ask = never;
      kill = std::min(kill, now + grace);
    }
    if (now >= kill) {
      signal_all(SIGKILL);
      kill = now + interval;
      if (give_up == never) give_up = now + kKillPatience;
    }
    if (now >= give_up) leave_running();
  }
}

const Launcher::Rank* Launcher::first_failure() const {
  for (const Rank& r : ranks_) {
    if (r.order == 0) return &r;
  }
  return nullptr;
}

int Launcher::run() {
  for (int attempt = 0;; ++attempt) {
    start(attempt);
    supervise();
    const Rank* first = first_failure();
    if (!first) return 0;
    if (was_told_to_end(*first)) {
      report_interrupt();
      return 128 + signal_;
    }
    const bool again = attempt < settings_.max_restarts && signal_ == 0;
    report(*first);
    if (!again) return exit_code(first->status);
    std::fprintf(stderr, "tarn-run: starting all ranks anew (%d of %lld)\n", attempt + 1,
                 static_cast<long long>(settings_.max_restarts));
  }
}

}  // namespace tarn::apps
