// checkpoint.h - what a checkpoint of tarn-gpt holds besides tensors.
#pragma once

#include <cstdint>

#include "tarn/core/checkpoint.h"
#include "tarn/nn/models/gpt.h"

namespace tarn::apps {

/// Where a run stands. Batches follow from the seed and the step alone.
struct GptState {
  int64_t step = 0;             ///< optimizer steps so far
  int64_t evaluated_step = -1;  ///< of the last estimate
  int64_t best_step = -1;       ///< of the best estimate
  double best_val_loss = 1e9;

  template <class F>
  void visit(F&& f) {
    f("step", step);
    f("evaluated_step", evaluated_step);
    f("best_step", best_step);
    f("best_val_loss", best_val_loss);
  }
};

/// The model's sizes and its GELU: a checkpoint of another model is refused.
void store_sizes(Checkpoint& c, const nn::models::GptOptions& options);
nn::models::GptOptions restore_sizes(const Checkpoint& c);

}  // namespace tarn::apps
