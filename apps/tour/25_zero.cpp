// 25_zero.cpp - ZeRO: who holds what. Four ranks keep one copy of the training state between them.
#include <cstdio>
#include <optional>

#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/dist/ddp.h"
#include "tarn/dist/local_group.h"
#include "tarn/dist/zero.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/sequential.h"
#include "tarn/optim/adam.h"

using namespace tarn;

// MiB of a rank: these four live in one process and hold equally much.
double held(const MemoryStats& before, MemoryTag tag) {
  const auto i = static_cast<size_t>(tag);
  return static_cast<double>(memory_stats().by_tag[i] - before.by_tag[i]) / 4 / (1 << 20);
}

nn::Sequential& with_layers(nn::Sequential& net) {
  for (int i = 0; i < 12; ++i) net.add<nn::Linear>({.in = 384, .out = 384});
  return net;
}

// Two steps; what is held after the second backward. Returns the loss.
double train(dist::ProcessGroup& group, int stage, const TensorDict& start) {
  const MemoryStats before = memory_stats();
  group.barrier()->wait();
  nn::Sequential net;
  with_layers(net).load_state_dict(start);

  std::optional<dist::DistributedDataParallel> ddp;
  std::optional<dist::ZeroDataParallel> zero;
  if (stage == 0) ddp.emplace(net, group);
  if (stage > 0) zero.emplace(net, group, dist::ZeroOptions{.stage = stage});
  // The optimizer of a rank sees only its pieces, and afterwards all ranks get all of them.
  optim::AdamW adamw(zero ? zero->shards() : net.parameters(), {.lr = 1e-3});
  if (zero) zero->attach(adamw);

  double loss = 0;
  for (int step = 0; step < 2; ++step) {
    if (step > 0) adamw.step();
    adamw.zero_grad();
    const Tensor y = net(full({8, 384}, 0.1 * (group.rank() + 1)));
    const Tensor of_rank = mean(square(y));
    of_rank.backward();
    loss = of_rank.item();
  }
  group.barrier()->wait();
  if (group.rank() == 0) {
    std::printf("%5d %12.1f %11.1f %11.1f   %.9g\n", stage, held(before, MemoryTag::kParameters),
                held(before, MemoryTag::kGradients), held(before, MemoryTag::kOptimizer), loss);
  }
  group.barrier()->wait();
  return loss;
}

int main() {
  manual_seed(1);
  nn::Sequential start;
  with_layers(start);
  double losses[4] = {};
  std::printf("MiB of each of 4 ranks\nstage   parameters   gradients   optimizer   loss\n");
  for (int stage = 0; stage < 4; ++stage) {
    dist::run_local(4, [&](dist::ProcessGroup& group) {
      const double loss = train(group, stage, start.state_dict());
      if (group.rank() == 0) losses[stage] = loss;
    });
  }
  std::printf(
      "0 is DistributedDataParallel; 1 shards the optimizer, 2 gradients too, 3 also the\n"
      "parameters, which come and go layer by layer.\n");
  for (double loss : losses) {
    if (loss != losses[0]) return 1;
  }
}
