// settings.h - the trainer's flags, named as in torchvision's reference trainer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tarn/apps/common/find_batch.h"
#include "tarn/apps/common/options.h"
#include "tarn/apps/common/ranks.h"
#include "tarn/apps/common/run_checkpoints.h"
#include "tarn/apps/common/run_profile.h"

namespace tarn::apps {

struct ResnetSettings {
  // Data
  std::string data = "fashion-mnist";
  int64_t batch_size = 128, workers = 1;
  int64_t train_crop_size = 224, val_resize_size = 256, val_crop_size = 224;
  int64_t limit = 0;
  bool augment = true, skip_unreadable = false;
  double random_erase = 0;
  // Model
  std::string model = "resnet8", stem = "auto", shortcut = "A";
  bool zero_init_residual = false;
  std::optional<std::string> weights;
  // Training
  int64_t epochs = 7, start_epoch = 0, gradient_accumulation_steps = 1;
  std::string optimizer = "sgd";
  double lr = 0.1, momentum = 0.9, weight_decay = 1e-4;
  std::optional<double> norm_weight_decay;
  bool nesterov = false;
  double label_smoothing = 0, clip_grad_norm = 0;
  std::string scheduler = "onecycle";
  int64_t lr_base_size = 0;
  int64_t warmup_epochs = 0, step_size = 30;
  std::string warmup_method = "linear";
  double warmup_decay = 0.01, gamma = 0.1, lr_min = 0;
  bool model_ema = false;
  double model_ema_decay = 0.998;
  int64_t model_ema_steps = 1;
  bool amp = false, grad_checkpoint = false;
  std::string amp_dtype = "bfloat16";
  // Run
  std::string device = "auto", output_dir = "runs", name;
  std::optional<std::string> resume;
  bool test_only = false, allow_tf32 = false, progress = true;
  int64_t threads = 0, print_freq = 10, seed = 1;
  CheckpointSettings checkpoints;
  MemorySettings memory;
  ProfileSettings measure;
  // Ranks
  RankSettings ranks;
  bool sync_bn = false;

  /// The learning rate after --lr-base-size.
  double rate() const {
    return scaled_lr(lr, batch_size * gradient_accumulation_steps, lr_base_size);
  }
};

/// Declares every flag on `options`, bound to `s`.
void declare_flags(Options& options, ResnetSettings& s);
/// Throws UsageError for flags that are fine alone and not together, before anything is done.
/// options: the command line; without, all flags count as given.
void check_settings(const ResnetSettings& s, const Options* options = nullptr);

}  // namespace tarn::apps
