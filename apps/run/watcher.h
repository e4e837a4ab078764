// watcher.h - ends the ranks where tarn-run itself is killed.
#pragma once

#include <sys/types.h>

namespace tarn::apps {

/// A process that does nothing but wait for the end of the one that made it, and then kills the
/// process groups it was told of. The kernel alone would end a rank, but not what the rank started:
/// with `sh -c './train; echo done'` the shell, not the program.
class Watcher {
 public:
  /// Forks: before there are threads. Throws std::runtime_error if the system has no process left.
  Watcher();
  /// With no group left it just ends.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  void add(pid_t group) { tell(group); }
  /// Its number may soon belong to others.
  void remove(pid_t group) { tell(-group); }

 private:
  void tell(pid_t word);

  pid_t process_ = 0;
  int to_ = -1;  // a socket: that nobody holds this end any more is the sign
};

}  // namespace tarn::apps
