// dist_ddp_fuzz_test.cpp - random combinations of what DDP supports, each against one process.
#include <optional>
#include <random>

#include "tarn/autograd/functions.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"
#include "tarn/dist/ddp.h"
#include "tarn/nn/linear.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/dist_tools.h"

namespace tarn::dist {
namespace {

constexpr int64_t kBatch = 72;  // divisible by 1 to 4 ranks times 1 to 3 micro-batches

struct Plan {
  int ranks, micro_batches, steps = 5;
  bool clip, tied, frozen, unused, overlap, momentum;
  double bucket_mb;
  unsigned seed;

  explicit Plan(unsigned s) : seed(s) {
    std::mt19937 random(s);
    const auto coin = [&] { return random() % 2 == 0; };
    ranks = 1 + static_cast<int>(random() % 4);
    micro_batches = 1 + static_cast<int>(random() % 3);
    clip = coin(), tied = coin(), frozen = coin(), unused = coin(), overlap = coin();
    momentum = coin();
    constexpr double kSizes[] = {0.05 / 1024, 0.4 / 1024, 25};
    bucket_mb = kSizes[random() % 3];
  }
  // Whether a micro-batch goes through the branch; the same on all ranks.
  bool uses_branch(int step, int micro) const {
    return !unused ||
           (seed + 3u * static_cast<unsigned>(step) + static_cast<unsigned>(micro)) % 3 != 0;
  }
};

class Net : public nn::Module {
 public:
  explicit Net(const Plan& plan) {
    std::mt19937 random(plan.seed + 1);
    for (Tensor& p : parameters()) {
      for (int64_t i = 0; i < p.numel(); ++i) {
        p.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 200) - 100) / 250.f;
      }
    }
    if (plan.tied) b.weight.tie(a.weight);
    if (plan.frozen) c.weight.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = relu(b(relu(a(relu(in(x))))));
    return out(branch ? h + c(h) : h);
  }
  nn::Linear in{this, "in", {.in = 4, .out = 6}};
  nn::Linear a{this, "a", {.in = 6, .out = 6}};
  nn::Linear b{this, "b", {.in = 6, .out = 6}};
  nn::Linear c{this, "c", {.in = 6, .out = 6}};
  nn::Linear out{this, "out", {.in = 6, .out = 2}};
  bool branch = true;
};

Tensor batch_of(const Plan& plan, int step, int64_t columns) {
  std::mt19937 random(plan.seed * 100 + static_cast<unsigned>(step * 10 + columns));
  Tensor x = empty({kBatch, columns});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 600.f;
  }
  return x;
}

// Micro-batch `micro` of this rank: micro-batches are blocks of rows, and ranks blocks within them.
Tensor part(const Plan& plan, const Tensor& x, int micro, int rank, int ranks) {
  const int64_t block = kBatch / plan.micro_batches, rows = block / ranks;
  return raw::contiguous(raw::narrow(x, 0, micro * block + rank * rows, rows));
}

// Weights after training on a rank of the group, or alone.
std::vector<double> train(const Plan& plan, ProcessGroup* group) {
  Net net(plan);
  std::optional<DistributedDataParallel> ddp;
  if (group) {
    ddp.emplace(net, *group,
                DdpOptions{.bucket_cap_mb = plan.bucket_mb,
                           .first_bucket_mb = plan.bucket_mb,
                           .find_unused_parameters = plan.unused,
                           .overlap = plan.overlap});
  }
  const int rank = group ? group->rank() : 0, ranks = group ? group->size() : 1;
  optim::SGD sgd(net.parameters(), {.lr = 0.05, .momentum = plan.momentum ? 0.9 : 0});
  for (int step = 0; step < plan.steps; ++step) {
    sgd.zero_grad();
    const Tensor x = batch_of(plan, step, 4), y = batch_of(plan, step, 2);
    for (int micro = 0; micro < plan.micro_batches; ++micro) {
      std::optional<DistributedDataParallel::NoSync> guard;
      if (ddp && micro + 1 < plan.micro_batches) guard.emplace(ddp->no_sync());
      net.branch = plan.uses_branch(step, micro);
      const Tensor d = net(part(plan, x, micro, rank, ranks)) - part(plan, y, micro, rank, ranks);
      (mean(d * d) / static_cast<double>(plan.micro_batches)).backward();
    }
    if (plan.clip) optim::clip_grad_norm_(net.parameters(), 0.5);
    sgd.step();
  }
  if (ddp) ddp->check_replicas();
  std::vector<double> all;
  for (const Tensor& p : net.parameters()) {
    const auto values = p.to_vector<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(DdpFuzz, every_combination_equals_one_process) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const Plan plan(seed);
    const auto alone = train(plan, nullptr);
    run_local(plan.ranks, [&](ProcessGroup& group) {
      const auto ours = train(plan, &group);
      for (size_t i = 0; i < alone.size(); ++i) {
        ASSERT_NEAR(ours[i], alone[i], 1e-5)
            << "seed " << seed << ": " << plan.ranks << " ranks, " << plan.micro_batches
            << " micro-batches, clip " << plan.clip << ", tied " << plan.tied << ", frozen "
            << plan.frozen << ", unused " << plan.unused << ", overlap " << plan.overlap;
      }
    });
  }
}

TEST(DdpBackward, that_threw_on_all_ranks_leaves_nothing_behind) {
  run_local(2, [](ProcessGroup& group) {
    const Plan plan(0);
    Net net(plan), fresh(plan);
    DistributedDataParallel ddp(net, group,
                                {.bucket_cap_mb = 0.05 / 1024, .first_bucket_mb = 1e-5});
    const Tensor x = batch_of(plan, group.rank(), 4);
    const int64_t bomb = net.in.bias.register_post_accumulate_grad_hook(
        [](const Tensor&) { throw ValueError("half way"); });
    EXPECT_THROW(sum(net(x)).backward(), ValueError);
    net.in.bias.remove_hook(bomb);
    net.zero_grad();
    sum(net(x)).backward();
    sum(fresh(x)).backward();
    const Tensor wanted = fresh.out.weight.grad().clone();
    group.all_reduce(wanted, ReduceOp::kAvg)->wait();
    EXPECT_EQ(test::bits(net.out.weight.grad()), test::bits(wanted));
  });
}

TEST(DdpNoSync, what_one_rank_used_in_one_micro_batch_alone_is_averaged) {
  run_local(2, [](ProcessGroup& group) {
    Plan plan(0);
    plan.tied = plan.frozen = false;
    Net net(plan);
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    const Tensor x = batch_of(plan, 0, 4);
    {
      const auto guard = ddp.no_sync();
      net.branch = group.rank() == 1;
      sum(net(x)).backward();
    }
    const Tensor mine = net.c.weight.grad();
    EXPECT_EQ(mine.defined(), group.rank() == 1);
    const Tensor half = mine.defined() ? raw::mul(mine, 0.5) : zeros({6, 6});
    group.broadcast(half, 1)->wait();
    net.branch = false;
    sum(net(x)).backward();
    ASSERT_TRUE(net.c.weight.grad().defined());
    EXPECT_EQ(test::bits(net.c.weight.grad()), test::bits(half));
  });
}

}  // namespace
}  // namespace tarn::dist
