// checkpoint.h - what a checkpoint of tarn-resnet holds besides tensors.
#pragma once

#include <cstdint>
#include <string>

namespace tarn::apps {

/// Where a run stands. The order of images and their augmentation follow from seed, epoch and
/// batch.
struct TrainState {
  std::string model;          ///< its name: a checkpoint of another is refused
  int64_t epoch = 0;          ///< the epoch to go on with
  int64_t batch = 0;          ///< batches of it already done
  int64_t step = 0;           ///< batches of all epochs so far
  int64_t updates = 0;        ///< optimizer steps so far: loss scaling skips some
  int64_t epoch_batches = 0;  ///< batches in an epoch: a run cannot go on with other batches
  double loss_sum = 0;        ///< over the images seen in this epoch, as are the next two
  int64_t right = 0, seen = 0;
  double best_accuracy = -1;  ///< of any epoch, in percent; -1: there was none
  int64_t best_step = -1;     ///< at the end of that epoch

  template <class F>
  void visit(F&& f) {
    f("model", model);
    f("epoch", epoch);
    f("batch", batch);
    f("step", step);
    f("updates", updates);
    f("epoch_batches", epoch_batches);
    f("loss_sum", loss_sum);
    f("right", right);
    f("seen", seen);
    f("best_accuracy", best_accuracy);
    f("best_step", best_step);
  }
};

}  // namespace tarn::apps
