// setup.cpp - model, optimizer and schedule from the flags.
#include "tarn/apps/gpt/setup.h"

#include <algorithm>

#include "tarn/autograd/functions.h"
#include "tarn/optim/adam.h"

namespace tarn::apps {
namespace {

constexpr const char* kPositions = "transformer.wpe.weight";

// Positions beyond the block are left out: the model then reads shorter texts.
TensorDict with_block(const TensorDict& state, int64_t block) {
  TensorDict out;
  for (const auto& [name, tensor] : state) {
    out.add(name, name == kPositions ? tensor.narrow(0, 0, block).contiguous() : tensor);
  }
  return out;
}

}  // namespace

std::unique_ptr<nn::models::Gpt> make_gpt(const GptSettings& s, int64_t vocab) {
  auto net = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{.vocab = vocab,
                                                                      .block = s.block_size,
                                                                      .layers = s.n_layer,
                                                                      .heads = s.n_head,
                                                                      .size = s.n_embd,
                                                                      .dropout = s.dropout,
                                                                      .bias = s.bias,
                                                                      .tanh_gelu = s.tanh_gelu()});
  net->to(Device(s.device));
  net->set_checkpoint(s.grad_checkpoint);
  return net;
}

std::unique_ptr<nn::models::Gpt> make_gpt(const GptSettings& s, GptWeights w,
                                          const std::string& path) {
  TARN_CHECK_AS(ValueError, s.block_size <= w.options.block, "--block-size ", s.block_size,
                ": the model in ", path, " reads at most ", w.options.block, " tokens");
  if (s.block_size < w.options.block) {
    w.state = with_block(w.state, s.block_size);
    w.options.block = s.block_size;
  }
  w.options.dropout = s.dropout;
  auto net = std::make_unique<nn::models::Gpt>(w.options);
  try {
    net->load_state_dict(w.state);
  } catch (const Error& e) {
    detail::fail<ValueError>("the weights in ", path,
                             " are not those of a whole GPT-2: ", e.what());
  }
  net->to(Device(s.device));
  net->set_checkpoint(s.grad_checkpoint);
  return net;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const GptSettings& s, const nn::Module& net,
                                                 const ModelSharing& sharing) {
  const optim::AdamWOptions options{.lr = s.rate(s.learning_rate),
                                    .beta1 = s.beta1,
                                    .beta2 = s.beta2,
                                    .weight_decay = s.weight_decay};
  return std::make_unique<optim::AdamW>(
      sharing.held(optim::decay_groups(net.named_parameters(), options)));
}

optim::Schedule make_schedule(const GptSettings& s) {
  if (!s.decay_lr) return optim::lambda_lr([](int64_t) { return 1.0; });
  // A run that ends within the warm-up is a warm-up all along.
  const int64_t total = s.lr_decay_iters > 0 ? s.lr_decay_iters : s.max_iters;
  return optim::warmup_cosine(s.warmup_iters, std::max(total, s.warmup_iters + 1),
                              s.rate(std::min(s.min_lr, s.learning_rate)));
}

}  // namespace tarn::apps
