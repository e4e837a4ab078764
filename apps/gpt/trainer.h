// trainer.h - the training loop: steps of several micro-batches, estimates, samples, checkpoints.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tarn/apps/common/interrupt.h"
#include "tarn/apps/common/model_sharing.h"
#include "tarn/apps/common/progress.h"
#include "tarn/apps/common/ranks.h"
#include "tarn/apps/common/run_checkpoints.h"
#include "tarn/apps/common/run_dir.h"
#include "tarn/apps/common/run_profile.h"
#include "tarn/apps/gpt/checkpoint.h"
#include "tarn/apps/gpt/corpus.h"
#include "tarn/apps/gpt/report.h"
#include "tarn/apps/gpt/settings.h"
#include "tarn/data/token_dataset.h"
#include "tarn/dist/data_parallel.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/scaler.h"
#include "tarn/optim/schedule.h"

namespace tarn::apps {

/// Mean losses per token of random windows.
struct GptLosses {
  double train = 0, val = 0;
};

/// Everything that changes while a run goes on. One at a time: that of a run owns the signal
/// handlers. Without a run there is nothing to save, and signals do what they did.
class GptTrainer {
 public:
  /// run: null for estimates alone. On several ranks all of them make one; `run` is rank 0's
  /// folder, RunDir::nowhere() elsewhere.
  GptTrainer(const GptSettings& s, const Corpus& corpus, nn::models::Gpt& gpt, RunDir* run,
             const Ranks& ranks = {});

  /// Goes on where a checkpoint stands; the losses are then those of a run that was never stopped.
  /// Throws Error if the checkpoint is of another model.
  void resume(const Checkpoint& checkpoint, GptHistory history);
  /// All steps that are left. Returns false if a signal ended it early; the state is saved then.
  /// Throws Error if the loss is not finite.
  bool fit();
  /// The same windows each time. None if a signal came before the end.
  std::optional<GptLosses> estimate();

  /// Two steps with the --batch-size that the settings hold now, for --find-batch: the trainer and
  /// its model are of no other use afterwards. Throws OutOfMemoryError.
  void try_steps();

  const GptState& state() const { return state_; }
  const GptHistory& history() const { return history_; }
  double tokens_per_second() const;
  /// "12.3 GFLOP/s, 34.5 % of the peak of 35.6", of all steps done here; "" before the first.
  std::string rate_text() const;

 private:
  bool train_until(int64_t step);
  GptStepFigures train_step();
  void show(const GptStepFigures& f);
  double backward(const data::Batch& batch, double share, bool last);
  double agree(double loss, double seconds = 0);
  std::pair<int64_t, int64_t> own_rows() const;
  bool interrupted() const { return interrupt_ && interrupt_->requested(); }
  bool stop_requested();
  Tensor loss(const data::Batch& batch);
  bool evaluate();
  std::optional<double> mean_loss(const data::TokenDataset& data, uint64_t stream);
  void show_text();
  Trained trained() { return {gpt_, *optimizer_, scaler_, nullptr, sharing_.get()}; }
  void save();

  const GptSettings& s_;
  const Corpus& corpus_;
  nn::models::Gpt& gpt_;
  RunDir* run_;
  Ranks ranks_;
  std::unique_ptr<Interrupt> interrupt_;  // of a run
  bool stop_ = false;                     // a rank got a signal, and all know it
  data::TokenDataset train_, val_;
  std::unique_ptr<ModelSharing> sharing_;         // before what holds the parameters
  std::unique_ptr<dist::DataParallel> replicas_;  // with --parallel dp
  std::optional<dist::Balancer> balancer_;        // of ranks, with --rebalance
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Scheduler> scheduler_;
  optim::GradScaler scaler_;  // of float16; else it does nothing
  RunCheckpoints checkpoints_;
  GptState state_;
  GptHistory history_;
  double seconds_ = 0;  // spent in steps
  int64_t steps_done_ = 0;
  std::optional<RunProfile> profile_;  // from the first step of fit()
};

}  // namespace tarn::apps
