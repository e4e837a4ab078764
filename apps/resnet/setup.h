// setup.h - what the flags ask for: network, optimizer, schedule, weight average.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tarn/apps/common/model_sharing.h"
#include "tarn/apps/resnet/datasets.h"
#include "tarn/apps/resnet/settings.h"
#include "tarn/autograd/autocast.h"
#include "tarn/nn/module.h"
#include "tarn/optim/ema.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/scaler.h"
#include "tarn/optim/schedule.h"

namespace tarn::apps {

/// The network for this data, on --device, with --weights loaded. Throws ValueError that lists
/// every difference if they are of another network.
std::unique_ptr<nn::Module> make_model(const ResnetSettings& s, const ImageData& data);
/// Loads what `from`, a file or a run, holds. Throws ValueError as make_model() does.
void load_weights(nn::Module& net, const TensorDict& weights, const std::string& from,
                  const ResnetSettings& s);
/// SGD, Adam or AdamW over the network's parameters; with --norm-weight-decay, norms and biases in
/// a group of their own.
std::unique_ptr<optim::Optimizer> make_optimizer(const ResnetSettings& s, nn::Module& net,
                                                 const ModelSharing& sharing);
/// The rate at every step of the run, warm-up included.
optim::Schedule make_schedule(const ResnetSettings& s, int64_t steps_per_epoch);
/// What runs the forward in mixed precision (--amp), or plainly.
AutocastGuard autocast_for(const ResnetSettings& s);
/// Loss scaling, at work only with --amp --amp-dtype float16.
optim::GradScaler make_scaler(const ResnetSettings& s);
/// The running mean of all state (--model-ema), or null.
std::unique_ptr<optim::Ema> make_ema(const ResnetSettings& s, const nn::Module& net);

}  // namespace tarn::apps
