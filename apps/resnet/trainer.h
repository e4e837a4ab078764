// trainer.h - the training loop: epochs over a data set, evaluation, checkpoints.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "tarn/apps/common/interrupt.h"
#include "tarn/apps/common/metrics.h"
#include "tarn/apps/common/model_sharing.h"
#include "tarn/apps/common/progress.h"
#include "tarn/apps/common/run_checkpoints.h"
#include "tarn/apps/common/run_dir.h"
#include "tarn/apps/common/run_profile.h"
#include "tarn/apps/resnet/checkpoint.h"
#include "tarn/apps/resnet/datasets.h"
#include "tarn/apps/resnet/evaluate.h"
#include "tarn/apps/resnet/report.h"
#include "tarn/apps/resnet/settings.h"
#include "tarn/data/loader.h"
#include "tarn/dist/balance.h"
#include "tarn/dist/data_parallel.h"
#include "tarn/nn/module.h"
#include "tarn/optim/ema.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/scaler.h"
#include "tarn/optim/schedule.h"

namespace tarn::apps {

/// Everything that changes while a run goes on. One at a time (it owns the signal handlers).
///
/// With --skip-unreadable every batch counts as done, also one of which no image can be read: a run
/// that is resumed goes on with the next, and ranks take equally many steps. A step's gradient is
/// the mean over the images that it has; one that has none makes no update.
class Trainer {
 public:
  /// On several ranks all of them make one; `run` is rank 0's folder, RunDir::nowhere() elsewhere.
  Trainer(const ResnetSettings& s, const ImageData& data, nn::Module& net, RunDir& run,
          const Ranks& ranks = {});

  /// Goes on where a checkpoint stands; the run is then the same as if it had not been stopped.
  /// Throws Error if the checkpoint is of another model or of epochs of another length.
  void resume(const Checkpoint& checkpoint, History history);
  /// All epochs that are left. Returns false if a signal ended it early; the state is saved then.
  /// So it is before a FileError says which image cannot be read. Throws Error if the loss is not
  /// finite.
  bool fit();

  /// Two steps with `batch` blank images, for --find-batch: the trainer and its network are of no
  /// other use afterwards. Throws OutOfMemoryError.
  void try_steps(int64_t batch);

  const TrainState& state() const { return state_; }
  const History& history() const { return history_; }
  /// Of the last epoch trained here; none if there was none.
  const std::optional<Score>& last_score() const { return last_score_; }
  double images_per_second() const { return images_per_second_; }
  /// "12.3 GFLOP/s, 34.5 % of the peak of 35.6", of the steps trained here; "" before the first.
  std::string rate_text() const;
  /// Images left out, by any rank; other ranks' since the last epoch's end are not yet among them.
  const std::set<std::string>& skipped() const { return skipped_; }

 private:
  /// One step's results, of all ranks together.
  struct Step {
    double loss = 0, lr = 0;
    int64_t images = 0, right = 0;
  };

  /// Where a batch stands among those whose gradients make one step.
  struct Part {
    bool first = true, last = true;
    int64_t batches = 1;
  };

  bool train_and_test();
  bool train_epoch();
  Step train_step(const data::Batch& batch, const Part& part);
  int64_t updates_per_epoch() const;
  bool step_complete() const;
  Part part() const;
  int64_t images_of_all(int64_t own) const;
  Tensor forward(const data::Batch& batch, const Tensor& target, Tensor& logits);
  void update(int64_t whole);
  void agree(Step& step, bool synced);
  void log_shares();
  bool stop_requested();
  void count(const Step& step);
  void show(const Step& step, MetricLogger& meters, Progress& bar);
  void leave_out(const std::string& image);
  void tell_left_out();
  std::optional<Score> test();
  void finish_epoch();
  Trained trained() { return {net_, *optimizer_, scaler_, ema_.get(), sharing_.get()}; }
  Checkpoint checkpoint();
  void save();

  const ResnetSettings& s_;
  const ImageData& data_;
  nn::Module& net_;
  RunDir& run_;
  Ranks ranks_;
  Interrupt interrupt_;
  bool stop_ = false;                          // a rank got a signal, and all know it
  std::shared_ptr<dist::BatchShares> shares_;  // of ranks, with --rebalance
  data::DataLoader loader_;
  std::unique_ptr<ModelSharing> sharing_;         // before what holds the parameters
  std::unique_ptr<dist::DataParallel> replicas_;  // with --parallel dp
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradScaler scaler_;
  std::unique_ptr<optim::Scheduler> scheduler_;
  std::unique_ptr<optim::Ema> ema_;
  RunCheckpoints checkpoints_;
  TrainState state_;
  int64_t step_images_ = 0;  // of all ranks, in the batches so far whose gradients make one step
  bool resumed_ = false;
  History history_;
  std::optional<Score> last_score_;
  std::set<std::string> skipped_;
  std::set<std::string> untold_;  // of skipped_, what the other ranks do not know
  double images_per_second_ = 0;
  double own_time_ = 0;      // of the clock, less what was waited for others, as a step begins
  double step_seconds_ = 0;  // spent in steps, batches waited for
  int64_t steps_done_ = 0;
  SmoothedValue mfu_;                  // of the last steps, as a share
  std::optional<RunProfile> profile_;  // from the first step of fit()
};

}  // namespace tarn::apps
