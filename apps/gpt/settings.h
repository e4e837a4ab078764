// settings.h - the trainer's flags, named as in nanoGPT.
#pragma once

#include <optional>
#include <string>

#include "tarn/apps/common/find_batch.h"
#include "tarn/apps/common/options.h"
#include "tarn/apps/common/ranks.h"
#include "tarn/apps/common/run_checkpoints.h"
#include "tarn/apps/common/run_profile.h"

namespace tarn::apps {

struct GptSettings {
  // Data
  std::string data = "king-james", val_data, tokenizer = "auto";
  double val_fraction = 0.1;
  // Model; what a preset of --model gives is set by apply_preset()
  std::string model = "char", init_from = "scratch";
  int64_t n_layer = 4, n_head = 4, n_embd = 128, block_size = 64;
  double dropout = 0;
  bool bias = false;
  std::string gelu = "tanh";
  // Training
  int64_t batch_size = 12, gradient_accumulation_steps = 1, max_iters = 3000;
  double learning_rate = 1e-3, min_lr = 1e-4, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.99;
  double grad_clip = 1;
  bool decay_lr = true;
  int64_t warmup_iters = 100, lr_decay_iters = 0, lr_base_size = 0;
  std::string dtype = "float32";
  bool grad_checkpoint = false;
  // Evaluation
  int64_t eval_interval = 250, eval_iters = 20, log_interval = 10;
  bool eval_only = false;
  std::optional<std::string> export_to;
  // Text
  bool sample = false, kv_cache = true;
  std::string start;
  int64_t num_samples = 1, max_new_tokens = 500, top_k = 200, sample_tokens = 160;
  double temperature = 0.8, top_p = 1;
  // Run
  std::string device = "auto", out_dir;
  std::optional<std::string> resume;
  bool allow_tf32 = false, progress = true;
  int64_t threads = 0, seed = 1337;
  CheckpointSettings checkpoints;
  RankSettings ranks;
  MemorySettings memory;
  ProfileSettings measure;

  /// A learning rate after --lr-base-size.
  double rate(double lr) const {
    return scaled_lr(lr, batch_size * gradient_accumulation_steps, lr_base_size);
  }
  bool tanh_gelu() const { return gelu == "tanh"; }
  /// The file of weights that --init-from names, if it names one.
  bool from_file() const { return init_from != "scratch" && init_from != "resume"; }
};

/// Declares every flag on `options`, bound to `s`.
void declare_flags(Options& options, GptSettings& s);
/// Gives the flags that are not on the command line what suits --model.
void apply_preset(Options& options, const GptSettings& s);
/// Throws UsageError for flags that are fine alone and not together, before anything is done.
/// options: the command line, to know which flags it gave.
void check_settings(const GptSettings& s, const Options* options = nullptr);

}  // namespace tarn::apps
