// checkpoint_manager.h - the checkpoints of a run: the last few and the best, saved at once or in
// the background.
//
//   CheckpointManager checkpoints("runs/a/checkpoints", {.keep_last = 2});
//   if (auto c = checkpoints.load_newest()) resume_from(*c);
//   while (...) {
//     ...
//     if (step % 1000 == 0) checkpoints.save_async(state(step));   // goes on at once
//   }
//   checkpoints.wait();
//
//   runs/a/checkpoints/  step-001000/  step-002000/  last -> step-002000  best -> step-001000
//
// What has just been saved is on disk before an older one is deleted, so a full disk costs none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tarn/core/checkpoint.h"

namespace tarn {

struct CheckpointManagerOptions {
  int64_t keep_last = 2;  ///< so many are kept, and the best besides; at least 1
};

/// One per folder: two that save into one folder delete each other's. Not thread-safe, but what is
/// saved in the background needs nothing from the caller.
class CheckpointManager {
 public:
  /// Touches nothing yet. Throws ValueError on bad options.
  explicit CheckpointManager(std::string folder, CheckpointManagerOptions options = {});
  /// Waits for what is being written. Call wait() before, to hear of a failure.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// Saves it as step-N; on disk for good when it returns. One of the same step is replaced. Then
  /// the links are set (where the file system has links) and those that are too many go. Throws
  /// what save_checkpoint throws.
  void save(const Checkpoint& checkpoint);
  /// Copies it and returns; the copy is written in the background. At most one is under way: this
  /// first waits for the one before, and throws what that ran into.
  void save_async(const Checkpoint& checkpoint);
  /// True if nothing is being written. Throws what the last one ran into, once. To ask at each
  /// step.
  bool idle() { return wait_for(0); }
  /// The same after at most so many seconds.
  bool wait_for(double seconds);
  /// Until nothing is being written; throws as idle() does.
  void wait();

  /// The newest that is whole, or none if there is none at all. `damaged` hears of each newer one
  /// that is not, in a sentence that names it; the run replaces those when it gets there. Throws
  /// FileError if all are damaged, ValueError if a newer version of tarn wrote the newest.
  std::optional<Checkpoint> load_newest(const std::function<void(const std::string&)>& damaged = {},
                                        const std::vector<std::string>& only = {});
  /// Says that those of later steps are not whole: they count neither among the last few nor as the
  /// best. load_newest knows; this is for a run that loaded its state through another manager.
  void distrust_after(int64_t step);
  /// Points `last` and `best` to what they name. A save does so; a run that goes on may have been
  /// killed between a checkpoint and its links, and have nothing left to save.
  void relink() const;
  /// That of a step. Throws as load_checkpoint does.
  Checkpoint load(int64_t step, const std::vector<std::string>& only = {}) const;
  /// The newest that was saved as the best so far. Throws FileError if there is none, and as
  /// load_checkpoint does.
  Checkpoint load_best(const std::vector<std::string>& only = {}) const;

  /// Steps of all that are there, whole or not, ascending.
  std::vector<int64_t> steps() const;
  /// FOLDER/step-000040
  std::string path(int64_t step) const;
  const std::string& folder() const { return folder_; }

 private:
  struct Background;

  void write(const Checkpoint& checkpoint);
  bool is_damaged(int64_t step) const;
  std::optional<int64_t> best_step() const;
  void point(const std::string& link, int64_t step) const;
  void prune(int64_t newest);

  std::string folder_;
  CheckpointManagerOptions options_;
  std::vector<int64_t> damaged_;
  std::unique_ptr<Background> background_;
};

}  // namespace tarn
