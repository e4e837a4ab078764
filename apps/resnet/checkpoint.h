// checkpoint.h - one folder holds everything a run needs to go on.
//
//   checkpoints/last/  {model,optim,ema,scaler}.safetensors  state.json
// (apps/common/checkpoint_folder.h says how it is written.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tarn/core/random.h"
#include "tarn/core/tensor_dict.h"

namespace tarn::apps {

/// Where a run stands.
struct TrainState {
  int64_t epoch = 0;          ///< the epoch to go on with
  int64_t batch = 0;          ///< batches of it already done
  int64_t step = 0;           ///< batches of all epochs so far
  int64_t updates = 0;        ///< optimizer steps so far: loss scaling skips some
  int64_t epoch_batches = 0;  ///< batches in an epoch: a run cannot go on with other batches
  double loss_sum = 0;        ///< over the images seen in this epoch, as are the next two
  int64_t right = 0, seen = 0;
  double best_accuracy = -1;  ///< of any epoch, in percent; -1: there was none
  PhiloxState random;         ///< of the default generator
};

struct Checkpoint {
  TensorDict model = {}, optimizer = {};
  TensorDict ema = {}, scaler = {};  ///< may be empty
  TrainState state = {};
  std::string model_name = {};  ///< refused if another is asked for
};

/// Writes into `folder`, replacing what is there. Throws FileError or std::runtime_error; then the
/// old content is untouched.
void save_checkpoint(const std::filesystem::path& folder, const Checkpoint& checkpoint);
/// Throws FileError naming the file that is missing or damaged.
Checkpoint load_checkpoint(const std::filesystem::path& folder);

}  // namespace tarn::apps
