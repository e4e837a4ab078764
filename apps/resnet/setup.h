// setup.h - optimizer and schedule from the flags.
#pragma once

#include <memory>

#include "tarn/apps/resnet/settings.h"
#include "tarn/nn/module.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/schedule.h"

namespace tarn::apps {

/// SGD, Adam or AdamW over the network's parameters; with --norm-weight-decay, norms and biases in
/// a group of their own.
std::unique_ptr<optim::Optimizer> make_optimizer(const ResnetSettings& s, nn::Module& net);
/// The rate at every step of the run, warm-up included.
optim::Schedule make_schedule(const ResnetSettings& s, int64_t steps_per_epoch);

}  // namespace tarn::apps
