// ema.h - an exponential moving average of a model's weights, for evaluation.
#pragma once

#include <string>
#include <vector>

#include "tarn/core/tensor.h"
#include "tarn/core/tensor_dict.h"

namespace tarn::optim {

/// average += (1 - decay) (value - average) after every step; floating tensors are averaged,
/// buffers like running statistics too, the others (counters) copied. Halves are averaged in f32.
/// The averages follow tensors that Module::to converts or moves; tensors may be on several
/// devices.
class Ema {
 public:
  struct Options {
    double decay = 0.999;
    /// Early on min(decay, (1 + t) / (10 + t)), so that the first values fade faster.
    bool warmup = false;
  };
  /// tensors: parameters and buffers by name; the averages start as their values. To follow a
  /// module they must be its own, net.named_state(): those of state_dict() share its memory only
  /// until Module::to.
  explicit Ema(const TensorDict& tensors) : Ema(tensors, Options()) {}
  Ema(const TensorDict& tensors, Options options);

  /// Call after optimizer.step(), and not for skipped steps.
  void update();
  int64_t updates() const { return updates_; }
  /// Exchanges the values of model and averages: once before evaluating, once after. Averages of
  /// halves come back bit for bit, though the model holds them rounded.
  void swap();
  /// The averages by the model's names: net.load_state_dict(ema.averages()). They share the memory
  /// of the averages; halves are in f32.
  TensorDict averages() const;
  /// The same with "ema_updates", how many there were: for a checkpoint.
  TensorDict state_dict() const;
  /// Throws ValueError that names the first tensor that is missing or of another shape.
  void load_state_dict(const TensorDict& dict);

 private:
  struct Entry {
    std::vector<std::string> names;  // several where weights are tied
    Tensor value, average;
    Tensor exact;  // the average of a half while the model holds it, rounded
  };
  static void follow(Entry& entry);

  std::vector<Entry> entries_;
  Options options_;
  int64_t updates_ = 0;
};

}  // namespace tarn::optim
