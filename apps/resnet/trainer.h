// trainer.h - the training loop: epochs over a data set, evaluation, checkpoints.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tarn/apps/common/interrupt.h"
#include "tarn/apps/common/progress.h"
#include "tarn/apps/common/run_dir.h"
#include "tarn/apps/resnet/checkpoint.h"
#include "tarn/apps/resnet/datasets.h"
#include "tarn/apps/resnet/report.h"
#include "tarn/apps/resnet/settings.h"
#include "tarn/data/loader.h"
#include "tarn/nn/models/resnet.h"
#include "tarn/optim/ema.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/schedule.h"

namespace tarn::apps {

struct Score {
  double loss = 0;  ///< mean cross entropy
  int64_t right = 0, count = 0;
  double accuracy() const { return count ? 100.0 * double(right) / double(count) : 0; }
};

/// The network the flags ask for, on --device, with --weights loaded.
std::unique_ptr<nn::Module> make_model(const ResnetSettings& s, const ImageData& data);

/// Scores a network on a data set in eval mode, without recording. Images left out are added to
/// `skipped`.
Score evaluate(nn::Module& net, const data::ImageDataset& data, const ResnetSettings& s,
               std::vector<std::string>& skipped);

class Trainer {
 public:
  Trainer(const ResnetSettings& s, const ImageData& data, nn::Module& net, RunDir& run);

  /// Goes on where a checkpoint stands.
  void resume(const std::filesystem::path& folder);
  /// All epochs that are left. Returns false if a signal ended it early; the state is saved then.
  bool fit();

  const History& history() const { return history_; }
  double best_accuracy() const { return state_.best_accuracy; }
  const Score& last_score() const { return last_score_; }
  double images_per_second() const { return images_per_second_; }
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  bool train_epoch(int64_t epoch);
  void train_step(const data::Batch& batch, EpochFigures& figures, int64_t& seen);
  void finish_epoch(EpochFigures figures);
  void save(const char* name);

  const ResnetSettings& s_;
  const ImageData& data_;
  nn::Module& net_;
  RunDir& run_;
  Interrupt interrupt_;
  data::DataLoader loader_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Scheduler> scheduler_;
  std::unique_ptr<optim::Ema> ema_;
  TrainState state_;
  History history_;
  Score last_score_;
  std::vector<std::string> skipped_;
  double images_per_second_ = 0;
};

}  // namespace tarn::apps
