// watcher.cpp - waits for words from tarn-run, or its end.
#include "tarn/apps/run/watcher.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tarn::apps {
namespace {

[[noreturn]] void watch(int from) {
  ::setsid();  // what a terminal sends to tarn-run is not meant for this process
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(number, SIG_IGN);
  // Who reads tarn-run's output must not wait for this process.
  const int null = ::open("/dev/null", O_RDWR);
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, stream);
  std::set<pid_t> groups;
  for (pid_t word = 0;;) {
    const ssize_t n = ::read(from, &word, sizeof word);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof word) break;
    if (word > 0) {
      groups.insert(word);
    } else {
      groups.erase(-word);
    }
  }
  for (pid_t group : groups) ::kill(-group, SIGKILL);
  ::_exit(0);
}

}  // namespace

Watcher::Watcher() {
  int ends[2];
  const bool made = ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0;
  if (made) process_ = ::fork();
  if (!made || process_ < 0) {
    throw std::runtime_error(std::string("cannot start a process: ") + std::strerror(errno));
  }
  if (process_ == 0) {
    ::close(ends[1]);
    watch(ends[0]);
  }
  ::close(ends[0]);
  to_ = ends[1];
}

Watcher::~Watcher() {
  ::close(to_);
  ::waitpid(process_, nullptr, 0);
}

// If it was killed, the ranks still run.
void Watcher::tell(pid_t word) {
  while (::send(to_, &word, sizeof word, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

}  // namespace tarn::apps
