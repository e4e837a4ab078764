// 21_ddp_by_hand.cpp - data-parallel training without a wrapper: what DDP does, in plain view.
//
// Every rank has a replica and a share of the batch. The mean of the ranks' gradients is the
// gradient of the whole batch; if all start equal and apply it alike, all stay equal.
#include <cstdio>
#include <memory>
#include <mutex>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/dist/local_group.h"
#include "tarn/nn/models/mlp.h"
#include "tarn/optim/sgd.h"

using namespace tarn;

constexpr int kRanks = 4;
constexpr int64_t kBatch = 32;

std::unique_ptr<nn::models::Mlp> make_model() {
  static std::mutex one_at_a_time;  // the ranks are threads, and share one generator
  const std::lock_guard lock(one_at_a_time);
  manual_seed(0);
  return std::make_unique<nn::models::Mlp>(nn::models::MlpOptions{.sizes = {1, 32, 1}});
}

// Learns y = sin(x). Returns the last loss of the whole batch.
double train(dist::ProcessGroup& group) {
  const auto model = make_model();
  nn::models::Mlp& net = *model;
  for (const Tensor& p : net.parameters()) group.broadcast(p, 0)->wait();  // start equal
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});

  const int64_t share = kBatch / group.size();
  const Tensor x = linspace(-3, 3, kBatch).view({kBatch, 1});
  const Tensor mine = x.narrow(0, group.rank() * share, share);
  double loss_of_all = 0;
  for (int step = 0; step < 200; ++step) {
    sgd.zero_grad();
    const Tensor loss = mse_loss(net(mine), sin(mine));
    loss.backward();
    for (const Tensor& p : net.parameters()) {
      group.all_reduce(p.grad(), dist::ReduceOp::kAvg)->wait();  // one gradient for all
    }
    sgd.step();

    const Tensor average = loss.detach().clone();
    group.all_reduce(average, dist::ReduceOp::kAvg)->wait();
    loss_of_all = average.item();
  }
  return loss_of_all;
}

int main() {
  const auto run = [&](int ranks) {
    double result = 0;
    dist::run_local(ranks, [&](dist::ProcessGroup& group) {
      const double loss = train(group);
      if (group.rank() == 0) result = loss;
    });
    return result;
  };
  std::printf("1 rank,  32 rows:        loss %.6f\n", run(1));
  std::printf("%d ranks, %lld rows each:   loss %.6f\n", kRanks,
              static_cast<long long>(kBatch / kRanks), run(kRanks));
  return 0;
}
