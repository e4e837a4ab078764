// dist_ddp_fuzz_test.cpp - random combinations of what DDP supports, each against one process.
#include <limits>
#include <optional>
#include <random>
#include <sstream>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/recompute.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"
#include "tarn/dist/ddp.h"
#include "tarn/nn/linear.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/scaler.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/dist_tools.h"

namespace tarn::dist {
namespace {

constexpr int64_t kBatch = 72;  // divisible by 1 to 4 ranks times 1 to 3 micro-batches

struct Plan {
  int ranks, micro_batches, steps = 5;
  bool clip, tied, frozen, unused, overlap, momentum, checkpointed, uneven, amp, fixed;
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
    checkpointed = coin(), uneven = coin(), amp = random() % 3 == 0;
    fixed = !unused && coin();
  }
  // Whether a micro-batch goes through the branch; the same on all ranks.
  bool uses_branch(int step, int micro) const {
    return !unused ||
           (seed + 3u * static_cast<unsigned>(step) + static_cast<unsigned>(micro)) % 3 != 0;
  }
  // Step 2 of mixed precision overflows, on rank 0.
  bool overflows(int step, int rank) const { return amp && step == 2 && rank == 0; }

  // Rows of rank `rank` in each micro-batch: ranks have blocks within it, equal or growing.
  std::pair<int64_t, int64_t> rows(int rank) const {
    const int64_t block = kBatch / micro_batches;
    const auto edge = [&](int r) {
      return uneven ? block * r * (r + 1) / (ranks * (ranks + 1)) : block * r / ranks;
    };
    return {edge(rank), edge(rank + 1) - edge(rank)};
  }
  std::string text() const {
    std::ostringstream out;
    out << "seed " << seed << ": " << ranks << " ranks, " << micro_batches
        << " micro-batches, clip " << clip << ", tied " << tied << ", frozen " << frozen
        << ", unused " << unused << ", overlap " << overlap << ", momentum " << momentum
        << ", checkpointed " << checkpointed << ", uneven " << uneven << ", amp " << amp
        << ", static_graph " << fixed;
    return out.str();
  }
};

class Net : public nn::Module {
 public:
  explicit Net(const Plan& plan) : checkpointed(plan.checkpointed) {
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
    const auto middle = [this](const Tensor& t) { return relu(b(relu(a(t)))); };
    const Tensor first = relu(in(x));
    const Tensor h = checkpointed ? checkpoint(middle, first) : middle(first);
    return out(branch ? h + c(h) : h);
  }
  nn::Linear in{this, "in", {.in = 4, .out = 6}};
  nn::Linear a{this, "a", {.in = 6, .out = 6}};
  nn::Linear b{this, "b", {.in = 6, .out = 6}};
  nn::Linear c{this, "c", {.in = 6, .out = 6}};
  nn::Linear out{this, "out", {.in = 6, .out = 2}};
  bool branch = true, checkpointed;
};

Tensor batch_of(const Plan& plan, int step, int64_t columns) {
  std::mt19937 random(plan.seed * 100 + static_cast<unsigned>(step * 10 + columns));
  Tensor x = empty({kBatch, columns});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 600.f;
  }
  return x;
}

// A rank's rows of micro-batch `micro`, or all of them.
Tensor part(const Plan& plan, const Tensor& x, int micro, std::optional<int> rank) {
  const int64_t block = kBatch / plan.micro_batches;
  const auto [begin, rows] = rank ? plan.rows(*rank) : std::pair<int64_t, int64_t>(0, block);
  return raw::contiguous(raw::narrow(x, 0, micro * block + begin, rows));
}

// The backward of one micro-batch: of a rank's rows, whose mean counts as often as it has rows, or
// of all rows.
void backward(const Plan& plan, Net& net, optim::GradScaler& scaler, int step, int micro,
              std::optional<int> rank) {
  const Tensor x = part(plan, batch_of(plan, step, 4), micro, rank);
  const Tensor y = part(plan, batch_of(plan, step, 2), micro, rank);
  net.branch = plan.uses_branch(step, micro);
  double weight = 1.0 / plan.micro_batches;
  if (rank) {
    const auto all = static_cast<double>(kBatch / plan.micro_batches);
    weight *= static_cast<double>(x.size(0)) * plan.ranks / all;
  }
  Tensor loss;
  {
    const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16, plan.amp);
    const Tensor d = net(x) - y;
    loss = mean(d * d) * weight;
  }
  if (plan.overflows(step, rank.value_or(0))) loss = loss * std::numeric_limits<float>::infinity();
  scaler.scale(loss).backward();
}

// What ranks do one after another in one process, averaged in the order of ranks. In halves this is
// what can be compared: the mean of rounded gradients is not the rounded gradient of the mean.
void backward_of_ranks(const Plan& plan, Net& net, optim::GradScaler& scaler, int step) {
  std::vector<Tensor> sums(net.parameters().size());
  for (int rank = 0; rank < plan.ranks; ++rank) {
    net.zero_grad();
    for (int micro = 0; micro < plan.micro_batches; ++micro) {
      backward(plan, net, scaler, step, micro, rank);
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const Tensor grad = net.parameters()[i].grad();
      if (!grad.defined()) continue;
      sums[i] = sums[i].defined() ? raw::add(sums[i], grad) : grad.clone();
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].defined()) net.parameters()[i].set_grad(raw::div(sums[i], 1.0 * plan.ranks));
  }
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
                           .static_graph = plan.fixed,
                           .overlap = plan.overlap});
  }
  optim::SGD sgd(net.parameters(), {.lr = 0.05, .momentum = plan.momentum ? 0.9 : 0});
  optim::GradScaler scaler({.init_scale = 1024, .enabled = plan.amp});
  for (int step = 0; step < plan.steps; ++step) {
    sgd.zero_grad();
    for (int micro = 0; micro < plan.micro_batches; ++micro) {
      if (!group && plan.amp) continue;
      std::optional<DistributedDataParallel::NoSync> guard;
      if (ddp && micro + 1 < plan.micro_batches) guard.emplace(ddp->no_sync());
      backward(plan, net, scaler, step, micro,
               group ? std::optional<int>(group->rank()) : std::nullopt);
    }
    if (!group && plan.amp) backward_of_ranks(plan, net, scaler, step);
    if (plan.clip) {
      scaler.unscale_(sgd);
      optim::clip_grad_norm_(net.parameters(), 0.5);
    }
    EXPECT_EQ(scaler.step(sgd), !plan.overflows(step, 0)) << plan.text();
    scaler.update();
  }
  if (ddp) ddp->check_replicas();
  std::vector<double> all = {scaler.get_scale()};
  for (const Tensor& p : net.parameters()) {
    const auto values = p.to_vector<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(DdpFuzz, every_combination_equals_one_process) {
  for (unsigned seed = 0; seed < 80; ++seed) {
    const Plan plan(seed);
    const auto alone = train(plan, nullptr);
    run_local(plan.ranks, [&](ProcessGroup& group) {
      const auto ours = train(plan, &group);
      for (size_t i = 0; i < alone.size(); ++i) {
        ASSERT_NEAR(ours[i], alone[i], 1e-5) << plan.text();
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
