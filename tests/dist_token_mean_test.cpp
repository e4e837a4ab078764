// dist_token_mean_test.cpp - a mean over tokens where ranks have different numbers of them.
#include "tarn/autograd/functions.h"
#include "tarn/dist/ddp.h"
#include "tarn/nn/module.h"
#include "tarn/tests/dist_tools.h"

namespace tarn::dist {
namespace {

// One weight w = 1: what it multiplies is a token's loss, and the gradient of it.
class Scale : public nn::Module {
 public:
  Tensor forward(const Tensor& x) override { return x * w; }
  nn::Parameter w{this, "w", ones({1})};
};

// Rank 0 has one token of loss 2, rank 1 three of loss 4.
TEST(TokenMean, every_token_counts_once) {
  test::run_ranks("local", 2, [](ProcessGroup& group) {
    Scale net;
    DistributedDataParallel ddp(net, group);
    const Tensor losses = group.rank() == 0 ? full({1}, 2.0) : full({3}, 4.0);
    const Tensor tokens = full({1}, static_cast<double>(losses.numel()));
    group.all_reduce(tokens)->wait();
    // Gradients are averaged over the ranks: each takes its part of the mean times their number.
    const Tensor loss = sum(net(losses)) * (group.size() / tokens.item());
    loss.backward();
    EXPECT_EQ(net.w.grad().item(), 3.5);
    const Tensor mean = loss.detach() / static_cast<double>(group.size());
    group.all_reduce(mean)->wait();
    EXPECT_EQ(mean.item(), 3.5);
  });
}

TEST(TokenMean, micro_batches_of_1_and_3_step_by_4) {
  test::run_ranks("local", 2, [](ProcessGroup& group) {
    Scale net;
    DistributedDataParallel ddp(net, group);
    {
      const auto alone = ddp.no_sync();
      sum(net(full({1}, 1.0))).backward();
    }
    sum(net(full({1}, 3.0))).backward();
    EXPECT_EQ(net.w.grad().item(), 4);
  });
}

}  // namespace
}  // namespace tarn::dist
