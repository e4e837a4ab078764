// run_checkpoints.h - how trainers save and resume: flags, what all of them save, several ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "tarn/apps/common/model_sharing.h"
#include "tarn/apps/common/options.h"
#include "tarn/apps/common/ranks.h"
#include "tarn/core/checkpoint_manager.h"
#include "tarn/nn/module.h"
#include "tarn/optim/ema.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/scaler.h"

namespace tarn::apps {

struct CheckpointSettings {
  int64_t keep_last = 2;
  int64_t save_interval = 0;  ///< steps; 0: only where the trainer saves anyway
  bool async_save = false;
};
void declare_checkpoint_flags(Options& options, CheckpointSettings& settings);

/// What changes in every training.
struct Trained {
  nn::Module& net;
  optim::Optimizer& optimizer;
  optim::GradScaler& scaler;
  optim::Ema* ema = nullptr;
  ModelSharing* sharing = nullptr;  ///< null: of a process alone
};
/// Puts its state, and this rank's default generator's, into the checkpoint. The tensors are its
/// own, or copies; of ranks that share parts of it, the main one gets it all, and all call it.
/// Throws Error if a weight is not finite: nothing can go on from there.
void store(Checkpoint& c, const Trained& trained);
/// The optimizer keeps the options it was made with (learning rate, weight decay, ...), which the
/// flags say; set its schedule to the step afterwards. A running mean that the checkpoint lacks
/// starts from its weights. Each rank's default generator goes on where it stood; one that has no
/// state in the checkpoint (there are more ranks than before) draws apart from the main rank's.
/// Throws Error that lists what does not fit.
void restore(const Checkpoint& c, const Trained& trained, const Ranks& ranks = {});

/// A struct with `template <class F> void visit(F&& f) { f("name", member); ... }` to the values of
/// a checkpoint, and back.
template <class T>
void store_values(Checkpoint& c, T values) {
  values.visit([&c](const char* name, const auto& member) { c.values[name] = member; });
}
template <class T>
void restore_values(const Checkpoint& c, T& values) {
  struct Reader {
    void operator()(const char* name, int64_t& member) const { member = c.integer(name); }
    void operator()(const char* name, double& member) const { member = c.number(name); }
    void operator()(const char* name, std::string& member) const { member = c.text(name); }
    const Checkpoint& c;
  };
  values.visit(Reader{c});
}

/// The checkpoints of a run, written by the main rank.
class RunCheckpoints {
 public:
  /// run: the run's folder; only the main rank's matters.
  RunCheckpoints(const std::string& run, const CheckpointSettings& settings, const Ranks& ranks);

  /// True at every --save-interval steps.
  bool due(int64_t step) const;
  /// All ranks call it, and none goes on before the checkpoint is on disk; with --async-save,
  /// before it is copied and the one before is on disk. Throws FileError on the main rank, Error on
  /// others. The default generators of all ranks are in it.
  void save(Checkpoint c);
  /// For a rank that ends with an error of its own, which the others do not know: saves if this is
  /// the main one, and says whether it did. Without the others' generators.
  bool save_alone(const Checkpoint& c);
  /// Throws if saving in the background has failed. For the main rank, at every step.
  void check();
  /// Until all is on disk; all ranks call it at the end.
  void finish();
  /// See CheckpointManager::distrust_after.
  void resumed(int64_t step);

 private:
  void settle(bool wait, std::exception_ptr error);

  CheckpointSettings settings_;
  Ranks ranks_;
  CheckpointManager manager_;
};

/// What --resume goes on from: the newest that is whole, the same on all ranks. Damaged ones are
/// named on standard error. Throws FileError if there is none, ValueError if it is of a newer
/// format.
Checkpoint load_newest_checkpoint(const std::string& run, const Ranks& ranks = {},
                                  const std::vector<std::string>& only = {});
/// The best one. Throws FileError.
Checkpoint load_best_checkpoint(const std::string& run, const std::vector<std::string>& only = {});

}  // namespace tarn::apps
