// train.h - times whole training steps: forward, cross entropy, backward, optimizer.
#pragma once

#include <cstdint>
#include <string>

namespace tarn::bench {

struct TrainSettings {
  std::string model = "resnet18", stem = "cifar", input = "3x32x32", dtype = "float32";
  int64_t batch = 64, steps = 0, threads = 2;
  bool profile = false;
};

struct TrainResult {
  std::string name;
  double median_s = 0, best_s = 0, items_per_s = 0, rss_mib = 0;
};

/// Runs warm-up steps, checks that the loss is finite and falls on the fixed batch, then times
/// `steps` steps (0: by model). Throws Error on a model, input or dtype it does not know.
TrainResult bench_train(const TrainSettings& settings);

}  // namespace tarn::bench
