// setup.cpp - network, optimizer, schedule and weight average from the flags.
#include "tarn/apps/resnet/setup.h"

#include "tarn/core/serialize.h"
#include "tarn/nn/models/resnet.h"
#include "tarn/nn/sequential.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/sgd.h"

namespace tarn::apps {
namespace {

// One group, or two where norms and biases decay differently.
template <class Optimizer, class Options>
std::unique_ptr<optim::Optimizer> with_groups(const ResnetSettings& s, nn::Module& net,
                                              const ModelSharing& sharing, const Options& options) {
  if (!s.norm_weight_decay)
    return std::make_unique<Optimizer>(sharing.held(net.parameters()), options);
  Options norms = options;
  norms.weight_decay = *s.norm_weight_decay;
  const optim::DecaySplit split = optim::split_by_decay(net.named_parameters());
  return std::make_unique<Optimizer>(sharing.held(std::vector<optim::ParamGroup<Options>>{
      {.params = split.decay, .options = options}, {.params = split.no_decay, .options = norms}}));
}

bool use_cifar_stem(const ResnetSettings& s, const ImageData& data) {
  return s.stem == "cifar" || (s.stem == "auto" && data.image_size <= 64);
}

// The stages are the network's own lists; lists within blocks are left alone.
void checkpoint_blocks(nn::Module& net) {
  for (const auto& [name, module] : net.named_modules()) {
    auto* stage = dynamic_cast<nn::Sequential*>(module);
    if (stage && name.find('.') == std::string::npos) stage->set_checkpoint(true);
  }
}

}  // namespace

void load_weights(nn::Module& net, const TensorDict& weights, const std::string& from,
                  const ResnetSettings& s) {
  try {
    net.load_state_dict(weights);
  } catch (const Error& e) {
    detail::fail<ValueError>("the weights in ", from, " do not fit ", s.model,
                             " on this data: ", e.what());
  }
}

std::unique_ptr<nn::Module> make_model(const ResnetSettings& s, const ImageData& data) {
  using nn::models::Shortcut;
  auto net = nn::models::make_resnet(
      s.model, {.classes = data.classes,
                .in_channels = data.channels,
                .shortcut = s.shortcut == "A" ? Shortcut::kPad : Shortcut::kProjection,
                .cifar_stem = use_cifar_stem(s, data),
                .zero_init_residual = s.zero_init_residual});
  if (s.grad_checkpoint) checkpoint_blocks(*net);
  if (s.weights) load_weights(*net, load_safetensors(*s.weights).tensors, *s.weights, s);
  net->to(Device(s.device));
  return net;
}

AutocastGuard autocast_for(const ResnetSettings& s) {
  return AutocastGuard(Device(s.device).type, parse_dtype(s.amp_dtype), s.amp);
}

optim::GradScaler make_scaler(const ResnetSettings& s) {
  return optim::GradScaler({.enabled = s.amp && parse_dtype(s.amp_dtype) == DType::kF16});
}

std::unique_ptr<optim::Ema> make_ema(const ResnetSettings& s, const nn::Module& net) {
  if (!s.model_ema) return nullptr;
  return std::make_unique<optim::Ema>(net.state_dict(),
                                      optim::Ema::Options{.decay = s.model_ema_decay});
}

std::unique_ptr<optim::Optimizer> make_optimizer(const ResnetSettings& s, nn::Module& net,
                                                 const ModelSharing& sharing) {
  if (s.optimizer == "adam") {
    return with_groups<optim::Adam>(
        s, net, sharing, optim::AdamOptions{.lr = s.rate(), .weight_decay = s.weight_decay});
  }
  if (s.optimizer == "adamw") {
    return with_groups<optim::AdamW>(
        s, net, sharing, optim::AdamWOptions{.lr = s.rate(), .weight_decay = s.weight_decay});
  }
  return with_groups<optim::SGD>(s, net, sharing,
                                 optim::SGDOptions{.lr = s.rate(),
                                                   .momentum = s.momentum,
                                                   .weight_decay = s.weight_decay,
                                                   .nesterov = s.nesterov});
}

optim::Schedule make_schedule(const ResnetSettings& s, int64_t steps_per_epoch) {
  const int64_t warmup = s.warmup_epochs * steps_per_epoch;
  const int64_t rest = std::max<int64_t>(s.epochs * steps_per_epoch - warmup, 1);
  // Rates that change by epoch see the epoch, as in torchvision's trainer; cosine moves every step.
  const auto by_epoch = [steps_per_epoch](optim::Schedule schedule) {
    return optim::Schedule{
        [=](double base, int64_t t) { return schedule.lr(base, t / steps_per_epoch); }, {}};
  };
  optim::Schedule main;
  if (s.scheduler == "onecycle") {
    main = optim::one_cycle_lr({.max_lr = s.rate(),
                                .total_steps = rest,
                                .cycle_momentum = s.optimizer == "sgd" && s.momentum > 0,
                                .base_momentum = std::max(0.0, s.momentum - 0.05),
                                .max_momentum = std::min(s.momentum + 0.05, 0.999)});
  } else if (s.scheduler == "steplr") {
    main = by_epoch(optim::step_lr(s.step_size, s.gamma));
  } else if (s.scheduler == "exponentiallr") {
    main = by_epoch(optim::exponential_lr(s.gamma));
  } else if (s.scheduler == "cosineannealinglr") {
    main = optim::cosine_annealing_lr(rest, s.lr_min);
  } else {
    main = optim::lambda_lr([](int64_t) { return 1.0; });
  }
  if (warmup == 0) return main;
  // Up to where the main schedule begins: of one cycle that is far below its peak.
  const double end = s.scheduler == "onecycle" ? 1 / optim::OneCycleOptions().div_factor : 1;
  optim::Schedule rise = s.warmup_method == "linear"
                             ? optim::linear_lr(s.warmup_decay * end, end, warmup)
                             : optim::constant_lr(s.warmup_decay * end, warmup);
  if (main.momentum) {
    rise.momentum = [first = main.momentum(0)](int64_t) { return first; };
  }
  return optim::sequential({rise, main}, {warmup});
}

}  // namespace tarn::apps
