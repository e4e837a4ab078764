// dist_zero_errors_test.cpp - what ZeRO refuses, in which words, and who may go before whom.
#include "tarn/optim/rmsprop.h"
#include "tarn/tests/dist_zero_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::kZeroStages;
using test::zero_loss;
using test::ZeroNet;
using test::ZeroPlan;

TEST(ZeroErrors, of_options_and_models) {
  run_local(1, [](ProcessGroup& group) {
    ZeroNet net;
    EXPECT_THROWS_WITH(ZeroDataParallel(net, group, {.stage = 0}), ValueError,
                       "got 0; stage 0 is DistributedDataParallel");
    EXPECT_THROWS_WITH(ZeroDataParallel(net, group, {.stage = 4}), ValueError,
                       "zero: stage must be 1, 2 or 3; got 4");
    EXPECT_THROWS_WITH(
        ZeroDataParallel(net, group, {.bucket_cap_mb = 0}), ValueError,
        "zero: bucket sizes must be above 0 MiB; got bucket_cap_mb=0, first_bucket_mb=1");
    net.requires_grad_(false);
    EXPECT_THROWS_WITH(ZeroDataParallel(net, group), ValueError,
                       "zero: no parameter requires a gradient");
  });
  const auto errors = test::errors_of("local", 2, [](ProcessGroup& group) {
    ZeroNet net;
    if (group.rank() == 1) net.to(DType::kF64);
    const ZeroDataParallel zero(net, group);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "zero: parameters differ between ranks: number 0 is scale [1] f32 on rank 0, but "
              "scale [1] f64 on rank 1; every rank must build the same model");
  }
}

TEST(ZeroErrors, of_ranks_that_train_other_parameters) {
  const auto errors = test::errors_of("local", 2, [](ProcessGroup& group) {
    ZeroNet net({.frozen = group.rank() == 1});
    const ZeroDataParallel zero(net, group);
  });
  for (const std::string& error : errors) {
    test::expect_part(error,
                      "zero: parameters that require a gradient differ between ranks: number 2 is "
                      "in.bias [7] f32 on rank 0, but blocks.0.first.weight [9, 7] f32 on rank 1");
  }
}

TEST(ZeroErrors, of_a_module_on_two_devices) {
  const std::string why = test::why_not("nccl", 2);
  if (!why.empty()) GTEST_SKIP() << why;
  run_local(1, [](ProcessGroup& group) {
    ZeroNet net;
    net.out.to(Device(DeviceType::kCUDA, 1));
    EXPECT_THROWS_WITH(ZeroDataParallel(net, group), DeviceError,
                       "zero: the module must be on one device; got scale on cpu, out.weight on "
                       "cuda:1");
  });
}

TEST(ZeroErrors, of_attach_and_shard) {
  for (int stage : kZeroStages) {
    run_local(1, [&](ProcessGroup& group) {
      ZeroNet net;
      ZeroDataParallel zero(net, group, test::zero_options({.stage = stage}));
      optim::SGD whole({net.in.weight}), other({zeros({3})}), sgd(zero.shards());
      EXPECT_THROWS_WITH(zero.attach(whole), ValueError,
                         "attach: the optimizer's parameter 0=[7, 5] f32 cpu is the whole of "
                         "in.weight; make the optimizer of zero.shards()");
      EXPECT_THROWS_WITH(zero.attach(other), ValueError,
                         "attach: the optimizer's parameter 0=[3] f32 cpu is not a shard of this");
      EXPECT_THROWS_WITH(zero.shard({net.in.weight, zeros({3})}), ValueError,
                         "shard: parameter 1=[3] f32 cpu is not a parameter of the module");
      zero.attach(sgd);
      EXPECT_THROWS_WITH(zero.attach(sgd), ValueError,
                         "attach: this optimizer is attached already");
      optim::SGD again({zero.named_shards()["in.weight"]});
      EXPECT_THROWS_WITH(zero.attach(again), ValueError,
                         "attach: another optimizer that is attached updates in.weight already");
    });
  }
}

TEST(ZeroErrors, of_a_second_one_for_a_module) {
  for (int stage : {1, 2}) {
    run_local(2, [&](ProcessGroup& group) {
      ZeroNet net;
      std::optional<ZeroDataParallel> zero;
      zero.emplace(net, group, ZeroOptions{.stage = stage});
      EXPECT_THROWS_WITH(ZeroDataParallel(net, group), ValueError,
                         "zero: scale belongs to another ZeroDataParallel already; end that first");
      EXPECT_THROWS_WITH(DistributedDataParallel(net, group), ValueError,
                         "ddp: scale belongs to a ZeroDataParallel already; end that first");
      zero.reset();
      zero.emplace(net, group, ZeroOptions{.stage = 3});
    });
  }
}

TEST(ZeroErrors, of_a_module_that_ddp_has) {
  run_local(2, [](ProcessGroup& group) {
    ZeroNet net;
    {
      const DistributedDataParallel ddp(net, group);
      EXPECT_THROWS_WITH(ZeroDataParallel(net, group), ValueError,
                         "zero: scale belongs to a DistributedDataParallel already");
      EXPECT_THROWS_WITH(DistributedDataParallel(net, group), ValueError,
                         "ddp: scale belongs to another DistributedDataParallel already");
    }
    ZeroDataParallel(net, group);
  });
}

TEST(ZeroErrors, of_a_second_backward_without_an_optimizer) {
  for (int stage : kZeroStages) {
    const auto errors = test::errors_of("local", 2, [&](ProcessGroup& group) {
      ZeroNet net;
      ZeroDataParallel zero(net, group, test::zero_options({.stage = stage}));
      const Tensor x = ones({2, 5});
      sum(net(x)).backward();
      {
        const auto guard = zero.no_sync();
        sum(net(x)).backward();
      }
      sum(net(x)).backward();
    });
    for (const std::string& error : errors) {
      test::expect_part(error, "zero: a second backward, and no optimizer is attached; make one");
    }
  }
}

TEST(ZeroErrors, of_a_parameter_without_gradient_name_it_on_all_ranks) {
  const auto errors = test::errors_of("local", 2, [&](ProcessGroup& group) {
    ZeroNet net;
    ZeroDataParallel zero(net, group);
    net.branch = group.rank() == 0;
    sum(net(ones({2, 5}))).backward();
  });
  for (const std::string& error : errors) {
    test::expect_part(error,
                      "zero: 2 of 19 parameters got no gradient in this backward on rank 1: "
                      "extra.bias, extra.weight; leave them out");
  }
}

TEST(ZeroLifetime, optimizers_may_go_before_it_or_after) {
  for (int stage : kZeroStages) {
    run_local(2, [&](ProcessGroup& group) {
      const ZeroPlan plan{.stage = stage, .ranks = 2};
      ZeroNet net(plan);
      std::optional<ZeroDataParallel> zero;
      zero.emplace(net, group, test::zero_options(plan));
      const auto backward = [&] { zero_loss(plan, net, 0, 0, group.rank(), 2).backward(); };
      std::optional<optim::SGD> first(zero->shards());
      zero->attach(*first);
      backward();
      first->step();
      first.reset();
      optim::RMSprop second(zero->shards());
      zero->attach(second);
      backward();
      second.step();
      zero->check_replicas();
      zero.reset();
      second.step();  // of shards that nobody gathers any more
      second.zero_grad();
    });
  }
}

TEST(ZeroLifetime, a_step_that_throws_gathers_nothing) {
  run_local(1, [](ProcessGroup& group) {
    ZeroNet net;
    ZeroDataParallel zero(net, group);
    optim::SGD sgd(zero.shards());
    zero.attach(sgd);
    int steps = 0;
    const int64_t hook = sgd.register_step_post_hook([&](optim::Optimizer&) { ++steps; });
    sum(net(ones({2, 5}))).backward();
    const int64_t bomb =
        sgd.register_step_pre_hook([](optim::Optimizer&) { throw ValueError("not now"); });
    EXPECT_THROW(sgd.step(), ValueError);
    EXPECT_EQ(steps, 0);
    sgd.remove_hook(bomb);
    sgd.step();
    EXPECT_EQ(steps, 1);
    sgd.remove_hook(hook);
    sgd.step();
    EXPECT_EQ(steps, 1);
  });
}

}  // namespace
}  // namespace tarn::dist
