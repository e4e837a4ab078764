// dist_zero_units_test.cpp - ZeRO stage 3: which parameters are a unit, and whole models of them.
#include "tarn/core/raw_elementwise.h"
#include "tarn/nn/models/gpt.h"
#include "tarn/nn/models/resnet.h"
#include "tarn/tests/dist_zero_tools.h"

namespace tarn::dist {
namespace {

using test::bits_of;
using test::ZeroNet;

bool is_away(const Tensor& p) {
  return p.storage()->is_away();
}

// Parameters of two dtypes, in one unit and in the root.
class Mixed : public nn::Module {
 public:
  Mixed() {
    for (int i = 0; i < 2; ++i) blocks.add(std::make_unique<test::ZeroBlock>());
    Generator generator(3);
    for (const Tensor& p : parameters())
      raw::copy_(p, raw::mul(randn(p.sizes(), {}, &generator), 0.3));
    blocks[1].to(DType::kF64);
  }
  Tensor forward(const Tensor& x) override {
    return blocks[1](blocks[0](x * scale).to(DType::kF64));
  }
  nn::ModuleList<test::ZeroBlock> blocks{this, "blocks"};
  nn::Parameter scale{this, "scale", ones({7})};
};

TEST(ZeroUnits, may_be_of_several_dtypes) {
  std::string wanted;
  for (int stage : {0, 1, 2, 3}) {
    for (int64_t numel : {1, 1000}) {  // a unit for each dtype, or the root for both
      run_local(3, [&](ProcessGroup& group) {
        Mixed net;
        test::Sharing sharing(net, group, {.stage = stage, .min_unit_numel = numel});
        optim::Adam adam(sharing.held(), {.lr = 0.01});
        const std::string weights = test::bits_after_steps(net, group, sharing, adam);
        if (group.rank() > 0) return;
        if (stage == 0) wanted = weights;
        EXPECT_TRUE(weights == wanted) << stage;
      });
    }
  }
}

TEST(ZeroUnits, are_members_of_lists_and_the_root_has_the_rest) {
  ZeroNet net({.tied = true});
  const auto names = [](const UnitPlan& unit) {
    std::string text;
    for (const auto& [name, tensor] : unit.parameters) text += name + " ";
    return text;
  };
  const auto units = plan_units(net, list_members(100));
  ASSERT_EQ(units.size(), 4u);
  EXPECT_EQ(units[0].module, &net);
  EXPECT_EQ(names(units[0]),
            "scale in.weight in.bias bn.weight bn.bias blocks.0.first.weight extra.weight "
            "extra.bias out.weight out.bias ");  // blocks.0.first.weight is tied to block 2's
  EXPECT_EQ(names(units[1]), "blocks.0.first.bias blocks.0.second.weight blocks.0.second.bias ");
  EXPECT_EQ(units[2].module, &net.blocks[1]);
  EXPECT_EQ(names(units[3]), "blocks.2.first.bias blocks.2.second.weight blocks.2.second.bias ");
  EXPECT_EQ(plan_units(net, list_members(1000)).size(), 1u);
  // What is inside a unit is none, whatever the rule says.
  const auto all = plan_units(net, [](const std::string& name, nn::Module&) {
    return name == "blocks" || name == "blocks.1" || name == "extra";
  });
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].parameters.size(), 11u);
  EXPECT_EQ(names(all[2]), "extra.weight extra.bias ");
}

TEST(ZeroUnits, may_be_named_by_a_rule_of_ones_own) {
  run_local(2, [](ProcessGroup& group) {
    ZeroNet net;
    net.extra.requires_grad_(false);
    ZeroDataParallel zero(net, group,
                          {.stage = 3, .unit = [](const std::string& name, nn::Module&) {
                             return name == "extra" || name == "in";
                           }});
    optim::SGD sgd(zero.shards());
    zero.attach(sgd);
    const Tensor y = sum(net(ones({2, 5})));
    EXPECT_TRUE(is_away(net.in.weight));
    EXPECT_TRUE(is_away(net.extra.weight));
    EXPECT_FALSE(is_away(net.blocks[0].first.weight));
    y.backward();
    sgd.step();
    zero.check_replicas();
  });
}

// Trains a model of nn/models and returns the bits of its parameters.
template <class Make, class Loss>
std::string train_model(int stage, ProcessGroup& group, const Make& make, const Loss& loss_of) {
  const auto net = make();
  Generator generator(3);
  for (const Tensor& p : net->parameters()) {
    raw::copy_(p, raw::mul(randn(p.sizes(), {}, &generator), 0.1));
  }
  std::optional<DistributedDataParallel> ddp;
  std::optional<ZeroDataParallel> zero;
  if (stage == 0) {
    ddp.emplace(*net, group);
  } else {
    zero.emplace(*net, group, ZeroOptions{.stage = stage, .min_unit_numel = 1});
  }
  const auto groups = optim::decay_groups(net->named_parameters(), optim::AdamWOptions{.lr = 1e-3});
  optim::AdamW adamw(zero ? zero->shard(groups) : groups);
  if (zero) zero->attach(adamw);
  for (int step = 0; step < 3; ++step) {
    adamw.zero_grad();
    loss_of(*net, step, group.rank()).backward();
    adamw.step();
  }
  std::optional<ZeroDataParallel::Gathered> whole;
  if (zero) whole.emplace(zero->gathered());
  return bits_of(net->parameters());
}

TEST(ZeroModels, gpt_and_resnet_train_to_the_bits_of_ddp) {
  const auto random = [](const Shape& sizes, int64_t below, int seed) {
    Generator generator(static_cast<uint64_t>(seed));
    return randint(0, below, sizes, {.dtype = DType::kI64}, &generator);
  };
  for (bool checkpointed : {false, true}) {
    std::string wanted;
    for (int stage : {0, 1, 2, 3}) {
      run_local(2, [&](ProcessGroup& group) {
        const std::string weights = train_model(
            stage, group,
            [&] {
              auto gpt = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
                  .vocab = 31, .block = 8, .layers = 3, .heads = 2, .size = 12});
              gpt->set_checkpoint(checkpointed);
              return gpt;
            },
            [&](nn::models::Gpt& gpt, int step, int rank) {
              const Tensor tokens = random({2, 8}, 31, 2 * step + rank);
              return gpt.loss(tokens, tokens);
            });
        if (group.rank() > 0) return;
        if (stage == 0) wanted = weights;
        EXPECT_TRUE(weights == wanted) << stage;
      });
    }
  }
  std::string wanted;
  for (int stage : {0, 1, 2, 3}) {
    run_local(2, [&](ProcessGroup& group) {
      const std::string weights = train_model(
          stage, group,
          [] {
            return std::make_unique<nn::models::CifarResNet>(
                nn::models::CifarResNetOptions{.depth = 8});
          },
          [&](nn::Module& net, int step, int rank) {
            const Tensor x = random({2, 3, 16, 16}, 100, 2 * step + rank).to(DType::kF32) / 50.0;
            return cross_entropy(net(x), random({2}, 10, step));
          });
      if (group.rank() > 0) return;
      if (stage == 0) wanted = weights;
      EXPECT_TRUE(weights == wanted) << stage;
    });
  }
}

}  // namespace
}  // namespace tarn::dist
