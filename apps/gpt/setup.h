// setup.h - what the flags ask for: model, optimizer, schedule.
#pragma once

#include <memory>

#include "tarn/apps/common/model_sharing.h"
#include "tarn/apps/gpt/settings.h"
#include "tarn/apps/gpt/weights.h"
#include "tarn/nn/models/gpt.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/schedule.h"

namespace tarn::apps {

/// A fresh model for this many tokens, on --device.
std::unique_ptr<nn::models::Gpt> make_gpt(const GptSettings& s, int64_t vocab);
/// A model of the weights' sizes with these weights, on --device; --block-size may be shorter than
/// theirs. Throws ValueError if it is longer, or with every difference if they are not whole.
std::unique_ptr<nn::models::Gpt> make_gpt(const GptSettings& s, GptWeights weights,
                                          const std::string& path);

/// AdamW; matrices decay, vectors do not.
std::unique_ptr<optim::Optimizer> make_optimizer(const GptSettings& s, const nn::Module& net,
                                                 const ModelSharing& sharing);
/// Warm-up and cosine, or a constant rate.
optim::Schedule make_schedule(const GptSettings& s);

}  // namespace tarn::apps
