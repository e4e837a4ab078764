// dist_zero_optimizers_test.cpp - ZeRO: optimizers that come late, grow, or share the module.
#include "tarn/core/raw_elementwise.h"
#include "tarn/tests/dist_zero_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::bits;
using test::kZeroStages;
using test::zero_loss;
using test::ZeroNet;
using test::ZeroPlan;

struct Shared : test::ZeroShared {
  using ZeroShared::ZeroShared;

  // The first parameters of the model, and the others, which share buckets with them.
  std::pair<std::vector<Tensor>, std::vector<Tensor>> halves() {
    const std::vector<Tensor> all = held();
    const auto middle = all.begin() + static_cast<int64_t>(all.size()) / 2;
    return {{all.begin(), middle}, {middle, all.end()}};
  }
  void backward(int step) { zero_loss(plan, net, step, 0, group.rank(), group.size()).backward(); }
  // Stands for the bits of all parameters; the replicas are the same.
  size_t weights() {
    if (zero) zero->check_replicas();
    const auto whole = gathered();
    return std::hash<std::string>()(test::bits_of(net.parameters()));
  }
};

// What training comes to at a stage.
size_t trained_by(int stage, const std::function<void(Shared&)>& train) {
  size_t result = 0;
  run_local(2, [&](ProcessGroup& group) {
    Shared shared({.stage = stage, .ranks = 2}, group);
    train(shared);
    const size_t weights = shared.weights();
    if (group.rank() == 0) result = weights;
  });
  return result;
}

void expect_as_ddp(const std::function<void(Shared&)>& train) {
  const size_t ddp = trained_by(0, train);
  for (int stage : kZeroStages) EXPECT_EQ(trained_by(stage, train), ddp) << stage;
}

TEST(ZeroOptimizers, groups_that_are_added_later_follow_the_steps_too) {
  expect_as_ddp([](Shared& shared) {
    const auto [first, second] = shared.halves();
    optim::SGD sgd(first, {.lr = 0.05, .momentum = 0.9});
    shared.attach(sgd);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) sgd.add_param_group({.params = second, .options = {.lr = 0.02}});
      sgd.zero_grad();
      if (shared.ddp) shared.net.zero_grad();  // no shard of the others is held by sgd
      if (shared.zero) {
        for (const Tensor& shard : shared.zero->shards()) shard.zero_grad();
      }
      shared.backward(step);
      sgd.step();
    }
  });
}

TEST(ZeroOptimizers, groups_that_are_added_later_are_checked_by_the_step) {
  for (int stage : kZeroStages) {
    run_local(1, [&](ProcessGroup& group) {
      Shared shared({.stage = stage}, group);
      const auto [first, second] = shared.halves();
      optim::SGD one(first), two({second[1]});
      shared.zero->attach(one);
      shared.zero->attach(two);
      one.add_param_group({.params = {second[0]}});
      one.step();
      one.add_param_group({.params = {second[1]}});
      EXPECT_THROWS_WITH(one.step(), ValueError,
                         "step: another optimizer that is attached updates ");
      two.add_param_group({.params = {shared.net.out.weight}});
      EXPECT_THROWS_WITH(two.step(), ValueError, " is the whole of out.weight; make the optimizer");
      EXPECT_THROWS_WITH(two.step(), ValueError,
                         "step: the optimizer's parameter 1=[3, 7] f32 cpu");
    });
  }
}

TEST(ZeroOptimizers, that_made_a_step_before_they_are_attached_are_followed) {
  expect_as_ddp([](Shared& shared) {
    optim::SGD sgd(shared.held(), {.lr = 0.05, .momentum = 0.9});
    shared.backward(0);
    sgd.step();
    if (shared.zero) {
      shared.zero->attach(sgd);
      shared.zero->check_replicas();
    }
    for (int step = 1; step < 3; ++step) {
      sgd.zero_grad();
      shared.backward(step);
      sgd.step();
    }
  });
}

TEST(ZeroOptimizers, drop_the_local_gradients_of_their_own_parameters_only) {
  expect_as_ddp([](Shared& shared) {
    const auto [first, second] = shared.halves();
    optim::SGD one(first, {.lr = 0.05}), two(second, {.lr = 0.05});
    shared.attach(one);
    shared.attach(two);
    const auto local = [&](int step) {
      std::optional<DistributedDataParallel::NoSync> ddp;
      std::optional<ZeroDataParallel::NoSync> zero;
      if (shared.ddp) ddp.emplace(shared.ddp->no_sync());
      if (shared.zero) zero.emplace(shared.zero->no_sync());
      shared.backward(step);
    };
    for (int step = 0; step < 3; ++step) {
      local(2 * step);
      one.zero_grad();  // two's gradients stay
      shared.backward(2 * step + 1);
      one.step();
      two.step();
      one.zero_grad();
      two.zero_grad();
    }
  });
}

TEST(ZeroOptimizers, refuse_to_step_when_a_parameter_was_unfrozen) {
  for (int stage : kZeroStages) {
    const auto errors = test::errors_of("local", 2, [&](ProcessGroup& group) {
      Shared shared({.stage = stage, .ranks = 2, .frozen = true}, group);
      // What was frozen is in the optimizer, or not.
      optim::SGD sgd(group.rank() == 0 ? shared.zero->shards()
                                       : shared.zero->shard(shared.net.parameters()));
      shared.zero->attach(sgd);
      shared.backward(0);
      sgd.step();
      shared.net.blocks[1].first.weight.set_requires_grad();
      shared.backward(1);
      sgd.step();
    });
    for (const std::string& error : errors) {
      test::expect_part(error,
                        "zero: blocks.1.first.weight required no gradient when ZeroDataParallel "
                        "was made, and does now: ranks do not share its gradient; make "
                        "ZeroDataParallel after unfreezing");
    }
  }
}

}  // namespace
}  // namespace tarn::dist
