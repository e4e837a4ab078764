// dist_zero_unused_test.cpp - ZeRO: ranks that use other parameters than each other.
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/tests/dist_zero_tools.h"

namespace tarn::dist {
namespace {

using test::bits_of;
using test::kZeroStages;

// Blocks of which each rank leaves out others in each step (stochastic depth).
class Dropping : public nn::Module {
 public:
  Dropping() {
    for (int i = 0; i < 4; ++i) blocks.add(std::make_unique<test::ZeroBlock>());
    unsigned seed = 0;
    for (Tensor& p : parameters()) {
      std::mt19937 random(++seed);
      for (int64_t i = 0; i < p.numel(); ++i) {
        p.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 200) - 100) / 250.f;
      }
    }
    blocks[1].first.requires_grad_(false);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = in(x);
    for (size_t i = 0; i < 4; ++i) {
      const auto block = [this, i](const Tensor& t) { return blocks[i](t); };
      if (drops >> i & 1u) {
        if (calls_all) block(h);  // and does not use what it computes
      } else {
        h = checkpointed ? checkpoint(block, h) : block(h);
      }
    }
    return out(h);
  }
  nn::Linear in{this, "in", {.in = 7, .out = 7}};
  nn::ModuleList<test::ZeroBlock> blocks{this, "blocks"};
  nn::Linear out{this, "out", {.in = 7, .out = 7}};
  unsigned drops = 0;  // bit i: block i
  bool calls_all = false, checkpointed = false;
};

struct DropPlan {
  bool calls_all = false, checkpointed = false, accumulates = false, evaluates = false;
};

// The weights after a few steps, in bits.
std::string weights_of(int stage, const DropPlan& plan) {
  std::string result;
  run_local(3, [&](ProcessGroup& group) {
    Dropping net;
    net.calls_all = plan.calls_all;
    net.checkpointed = plan.checkpointed;
    std::optional<DistributedDataParallel> ddp;
    std::optional<ZeroDataParallel> zero;
    if (stage == 0) {
      ddp.emplace(net, group, DdpOptions{.find_unused_parameters = true});
    } else {
      zero.emplace(
          net, group,
          ZeroOptions{.stage = stage, .find_unused_parameters = true, .min_unit_numel = 1});
    }
    std::vector<Tensor> trained;
    for (const Tensor& p : net.parameters()) {
      if (p.requires_grad()) trained.push_back(p);
    }
    optim::SGD sgd(zero ? zero->shards() : trained, {.lr = 0.05, .momentum = 0.9});
    if (zero) zero->attach(sgd);
    const auto backward = [&](int step) {
      // In step 3 all leave out block 2; in step 4 rank 0 leaves out all blocks.
      net.drops = step == 3 ? 4u : static_cast<unsigned>(5 * group.rank() + 3 * step) % 16;
      if (step == 4 && group.rank() == 0) net.drops = 15;
      const Tensor y = net(full({3, 7}, 0.1 * (group.rank() + step + 1)));
      if (plan.evaluates) {
        const NoGradGuard no_grad;
        net.drops = 0;  // alike on all ranks
        net(ones({2, 7}));
      }
      mean(y * y).backward();
    };
    for (int step = 0; step < 6; ++step) {
      sgd.zero_grad();
      if (plan.accumulates) {
        std::optional<DistributedDataParallel::NoSync> ddp_guard;
        std::optional<ZeroDataParallel::NoSync> zero_guard;
        if (ddp) ddp_guard.emplace(ddp->no_sync());
        if (zero) zero_guard.emplace(zero->no_sync());
        backward(step + 1);
      }
      backward(step);
      if (stage == 3) {
        for (const Tensor& p : net.parameters()) EXPECT_TRUE(p.storage()->is_away());
      }
      sgd.step();
    }
    std::optional<ZeroDataParallel::Gathered> whole;
    if (zero) whole.emplace(zero->gathered());
    if (group.rank() == 0) result = bits_of(net.parameters());
  });
  return result;
}

TEST(ZeroUnused, ranks_that_leave_out_other_blocks_train_as_with_ddp) {
  for (unsigned variant = 0; variant < 16; ++variant) {
    const DropPlan plan{.calls_all = (variant & 1) != 0,
                        .checkpointed = (variant & 2) != 0,
                        .accumulates = (variant & 4) != 0,
                        .evaluates = (variant & 8) != 0};
    const std::string wanted = weights_of(0, plan);
    for (int stage : kZeroStages) {
      EXPECT_TRUE(weights_of(stage, plan) == wanted) << "stage " << stage << " of " << variant;
    }
  }
}

}  // namespace
}  // namespace tarn::dist
