// checkpoint.h - all that a run of tarn-gpt needs to go on.
//
//   checkpoints/last/  model.safetensors  optim.safetensors  state.json
#pragma once

#include <filesystem>
#include <string>

#include "tarn/core/random.h"
#include "tarn/core/tensor_dict.h"
#include "tarn/nn/models/gpt.h"

namespace tarn::apps {

/// Where a run stands. Batches follow from the seed and the step alone.
struct GptState {
  int64_t step = 0;             ///< optimizer steps so far
  int64_t evaluated_step = -1;  ///< of the last estimate
  double best_val_loss = 1e9;
  PhiloxState random;  ///< of the default generator: dropout
};

struct GptCheckpoint {
  TensorDict model = {}, optimizer = {}, scaler = {};  ///< the scaler's may be empty
  GptState state = {};
  nn::models::GptOptions options = {};  ///< refused if another model is asked for
};

/// Writes into `folder`, replacing what is there in one step. Throws FileError.
void save_checkpoint(const std::filesystem::path& folder, const GptCheckpoint& checkpoint);
/// Throws FileError naming the file that is missing or damaged.
GptCheckpoint load_gpt_checkpoint(const std::filesystem::path& folder);

}  // namespace tarn::apps
