// report.cpp - what tarn-run says of ranks that have ended.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <system_error>

#include <sys/wait.h>

#include "tarn/apps/common/main_guard.h"
#include "tarn/apps/run/flight.h"
#include "tarn/apps/run/launcher.h"
#include "tarn/dist/store.h"

namespace tarn::apps {
namespace {

namespace fs = std::filesystem;
constexpr int kTailLines = 15;

std::string status_text(int status) {
  if (!WIFSIGNALED(status)) return "exit code " + std::to_string(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  return "signal " + std::to_string(number) + " (" + strsignal(number) + ")";
}

bool has_text(const fs::path& log) {
  std::error_code error;
  return !log.empty() && fs::file_size(log, error) > 0 && !error;
}

}  // namespace

std::string tail(const fs::path& path, int lines) {
  constexpr std::streamoff kMost = 8192;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return "";
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - kMost));
  std::string text{std::istreambuf_iterator<char>(in), {}};
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t at = text.size();
  for (int i = 0; i < lines && at != std::string::npos && at > 0; ++i)
    at = text.rfind('\n', at - 1);
  if (at != std::string::npos && at > 0 && at < text.size()) text.erase(0, at + 1);
  return text;
}

// Ranks that wait for one that has left may do so for minutes.
void Launcher::say_who_ended() {
  std::vector<int> ended;
  for (Rank& r : ranks_) {
    if (!r.done() || r.said) continue;
    ended.push_back(r.rank);
    r.said = true;
  }
  if (failures_ > 0 || signal_ != 0) return;
  std::fflush(stdout);
  std::fprintf(stderr, "tarn-run: %s %s ended with exit code 0; %d still running\n",
               dist::ranks_text(ended).c_str(), ended.size() == 1 ? "has" : "have", running());
}

// Whether a rank ended as the signal that tarn-run passed on, or the kill after it, made it end.
bool Launcher::was_told_to_end(const Rank& r) const {
  if (!interrupted_) return false;
  if (!WIFSIGNALED(r.status)) return WEXITSTATUS(r.status) == 128 + signal_;
  return WTERMSIG(r.status) == signal_ || WTERMSIG(r.status) == SIGKILL;
}

void Launcher::report_interrupt() {
  std::fflush(stdout);
  // Whoever had to kill ranks wants to know what they were doing.
  const bool killed = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) {
    return WIFSIGNALED(r.status) && WTERMSIG(r.status) == SIGKILL && has_text(r.log);
  });
  logs_named_ = logs_named_ || killed;
  const std::string how = signal_ == SIGINT ? "interrupted" : "ended by " + status_text(signal_);
  std::fprintf(stderr, "tarn-run: %s%s\n", how.c_str(),
               killed ? ("; what the ranks printed is in " + logs_.string()).c_str() : "");
}

// Whether it was the command line that could not be run: then all ranks say so with the exit code
// that our programs, and most others, have for it, each in the same words, and which of them came
// first means nothing.
bool Launcher::all_refused() const {
  return ranks_.size() > 1 && ranks_.front().rank == 0 &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) {
           return r.failed() && WIFEXITED(r.status) && WEXITSTATUS(r.status) == kUsageExitCode;
         });
}

void Launcher::report(const Rank& first) {
  std::fflush(stdout);
  if (all_refused()) {
    logs_named_ = true;
    std::fprintf(stderr,
                 "tarn-run: error: all %zu ranks ended with exit code %d; what rank 0 printed "
                 "stands above, the rest is in %s\n",
                 ranks_.size(), kUsageExitCode, logs_.c_str());
    return;
  }
  const auto name = [](const Rank& r) { return "rank " + std::to_string(r.rank); };
  for (int i = failures_ - 1; i > 0; --i) {
    for (const Rank& r : ranks_) {
      if (r.order != i) continue;
      const bool printed = has_text(r.log);
      logs_named_ = logs_named_ || printed;
      std::fprintf(stderr, "tarn-run: %s ended after it with %s%s\n", name(r).c_str(),
                   status_text(r.status).c_str(),
                   printed ? (", log " + r.log.string()).c_str() : "");
    }
  }
  std::vector<int> numbers;
  for (const Rank& r : ranks_) numbers.push_back(r.rank);
  const std::string flight = flight_summary(logs_, numbers);
  if (!flight.empty()) {
    std::fprintf(stderr, "tarn-run: the last collectives:\n%s", flight.c_str());
  }
  if (first.log.empty()) {
    std::fprintf(stderr, "tarn-run: what rank 0 printed stands above\n");
  } else if (!has_text(first.log)) {
    std::fprintf(stderr, "tarn-run: %s printed nothing\n", name(first).c_str());
  } else {
    logs_named_ = true;
    std::fprintf(stderr, "tarn-run: the end of %s:\n%s\n", first.log.c_str(),
                 tail(first.log, kTailLines).c_str());
  }
  std::fprintf(stderr, "tarn-run: error: %s failed first, with %s\n", name(first).c_str(),
               status_text(first.status).c_str());
}

}  // namespace tarn::apps
