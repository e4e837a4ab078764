// train.h - times whole training steps: forward, cross entropy, backward, optimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tarn/apps/common/ranks.h"
#include "tarn/nn/module.h"

namespace tarn::bench {

struct TrainSettings {
  std::string model = "resnet18", stem = "cifar", input = "3x32x32", dtype = "float32";
  std::string device = "cpu";
  int64_t batch = 64, block = 256, steps = 0, threads = 2;
  int64_t replicas = 0;  ///< above 0: DataParallel over so many GPUs, or threads of the CPU
  bool profile = false;
  bool tf32 = false;  ///< what set_allow_tf32() was told
};

/// A network and one fixed batch: images and classes, or tokens [batch, block] and the next ones.
struct TrainWork {
  std::unique_ptr<nn::Module> net;
  Tensor x, y;
  std::string name;
  double momentum = 0.9;
};
/// Mean cross entropy of a network on x against classes y.
Tensor class_loss(nn::Module& net, const Tensor& x, const Tensor& y);
/// Models: resnet18, resnet50, mlp; gpt (6 layers, 6 heads, 384 wide, 65 tokens) and gpt2 (124M),
/// without dropout. Throws Error on a model or input it does not know.
TrainWork make_work(const TrainSettings& settings);

struct TrainResult {
  std::string name;
  double median_s = 0, best_s = 0, items_per_s = 0, rss_mib = 0;
  // On several ranks or replicas, per step: the time parameters and gradients travel, and how much
  // of it nobody computed in. NaN where a GPU does it without telling the host.
  double comm_s = 0, exposed_s = 0;
  // The most that tensors took at once, on the first device or rank, and the most on any other.
  double first_mib = 0, other_mib = 0;
};

/// The share of comm_s behind backward, 0 to 1; NaN where they are. exposed_s may be the longer of
/// the two: it holds the waits for ranks that are late.
double hidden_share(double comm_s, double exposed_s);

/// float32, or bfloat16: f32 weights under autocast, as in PyTorch. SGD, for the GPTs AdamW. On
/// several ranks each takes a share of the batch, with DDP; so do replicas, with DataParallel. Runs
/// warm-up steps, checks that the loss is finite and falls on the fixed batch, then times `steps`
/// steps (0: by model). Throws Error on a model or input it does not know.
TrainResult bench_train(const TrainSettings& settings, const apps::Ranks& ranks = {});

}  // namespace tarn::bench
