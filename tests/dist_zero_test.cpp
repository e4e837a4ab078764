// dist_zero_test.cpp - ZeRO: the bits of DDP at every stage, and the memory it promises.
#include "tarn/core/raw_elementwise.h"
#include "tarn/tests/dist_zero_tools.h"

namespace tarn::dist {
namespace {

using test::bits;
using test::kZeroStages;
using test::run_ranks;
using test::zero_train;
using test::ZeroNet;
using test::ZeroPlan;
using test::ZeroRank;

std::vector<double> train_alone(ZeroPlan plan) {
  std::vector<double> values;
  plan.stage = 0;
  run_local(1, [&](ProcessGroup& group) {
    ZeroRank rank(plan, group);
    rank.train(plan.steps);
    values = rank.values();
  });
  return values;
}

TEST(ZeroBits, are_those_of_ddp_at_every_stage) {
  for (int ranks : {1, 2, 3, 4}) {
    for (int variant = 0; variant < 24; ++variant) {
      ZeroPlan plan{.ranks = ranks,
                    .micro_batches = 1 << (variant % 3),
                    .clip = variant / 3 % 2 == 1,
                    .adam = variant / 6 % 2 == 1,
                    .tied = variant / 12 % 2 == 1};
      const size_t ddp = zero_train(plan);
      for (int stage : kZeroStages) {
        plan.stage = stage;
        ASSERT_EQ(zero_train(plan), ddp) << plan.text();
      }
    }
  }
}

TEST(ZeroBits, every_transport_gives_the_same) {
  for (const char* transport : {"host", "gloo"}) {
    if (!test::why_not(transport, 3).empty()) continue;
    ZeroPlan plan{.ranks = 3, .micro_batches = 2, .clip = true, .adam = true};
    const size_t ddp = zero_train(plan);
    for (int stage : kZeroStages) {
      plan.stage = stage;
      EXPECT_EQ(zero_train(plan, transport), ddp) << transport << " " << plan.text();
    }
  }
}

TEST(ZeroBits, over_nccl_are_near_those_of_one_process) {
  const std::string why = test::why_not("nccl", 3);
  if (!why.empty()) GTEST_SKIP() << why;
  ZeroPlan plan{.ranks = 3, .micro_batches = 2, .clip = true};
  const auto alone = train_alone(plan);
  for (int stage : kZeroStages) {
    plan.stage = stage;
    run_ranks("nccl", plan.ranks, [&](ProcessGroup& group) {
      ZeroRank rank(plan, group);
      rank.train(plan.steps);
      const auto ours = rank.values();
      for (size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(ours[i], alone[i], 1e-5);
    });
  }
}

TEST(ZeroBits, buckets_and_overlap_change_nothing) {
  ZeroPlan plan{.ranks = 3, .adam = true};
  const size_t reference = zero_train(plan);
  for (int stage : kZeroStages) {
    for (double mb : {1e-5, 1.0 / 1024, 25.0}) {
      for (bool overlap : {true, false}) {
        plan.stage = stage;
        plan.bucket_mb = mb;
        plan.overlap = overlap;
        EXPECT_EQ(zero_train(plan), reference) << plan.text();
      }
    }
  }
}

TEST(ZeroBits, are_those_of_ddp_whatever_it_is_combined_with) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const auto coin = [&] { return random() % 2 == 0; };
    constexpr int kRanks[] = {1, 2, 3, 4, 6};
    ZeroPlan plan{.ranks = kRanks[random() % 5],
                  .micro_batches = 1 << (random() % 3),
                  .clip = coin(),
                  .adam = coin(),
                  .tied = coin(),
                  .frozen = coin(),
                  .unused = coin(),
                  .overlap = coin(),
                  .checkpointed = coin(),
                  .autocast = random() % 3 == 0,
                  .scaled = random() % 3 == 0,
                  .norm = true,
                  .prefetch = coin(),
                  .dtype = random() % 4 == 0 ? DType::kBF16 : DType::kF32,
                  .bucket_mb = coin() ? 0.1 / 1024 : 25,
                  .seed = seed};
    if (plan.dtype == DType::kBF16) plan.autocast = plan.norm = false;
    const size_t ddp = zero_train(plan);
    for (int stage : kZeroStages) {
      plan.stage = stage;
      ASSERT_EQ(zero_train(plan), ddp) << plan.text();
    }
  }
}

TEST(ZeroValues, equal_those_of_one_process) {
  for (int stage : kZeroStages) {
    for (int ranks : {1, 2, 3, 4}) {
      ZeroPlan plan{.stage = stage, .ranks = ranks, .micro_batches = 2, .clip = true};
      const auto alone = train_alone(plan);
      run_local(ranks, [&](ProcessGroup& group) {
        ZeroRank rank(plan, group);
        rank.train(plan.steps);
        const auto ours = rank.values();
        for (size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(ours[i], alone[i], 1e-6);
      });
    }
  }
}

TEST(ZeroShards, hold_each_element_once) {
  for (int stage : kZeroStages) {
    run_local(4, [&](ProcessGroup& group) {
      ZeroNet net;
      ZeroDataParallel zero(net, group, test::zero_options({.stage = stage}));
      const TensorDict shards = zero.named_shards();
      ASSERT_EQ(shards.size(), 19u);
      bool empty_one = false;
      for (const auto& [name, shard] : shards) {
        ASSERT_EQ(shard.dim(), 1);
        empty_one |= shard.numel() == 0;
        const Tensor count = full({1}, shard.numel(), {.dtype = DType::kI64});
        group.all_reduce(count)->wait();
        EXPECT_EQ(count.item<int64_t>(), net.named_parameters()[name].numel()) << name;
      }
      EXPECT_TRUE(empty_one);  // `scale`, on all ranks but one
    });
  }
}

TEST(ZeroGradients, of_further_backwards_are_added_and_zero_grad_drops_all_of_them) {
  for (int stage : kZeroStages) {
    ZeroPlan plan{.stage = stage, .ranks = 2};
    run_local(2, [&](ProcessGroup& group) {
      ZeroRank rank(plan, group);
      const auto norm_after = [&](int backwards) {
        rank.optimizer->zero_grad();
        for (int i = 0; i < backwards; ++i) rank.backward(0);
        return rank.zero->grad_norm();
      };
      EXPECT_NEAR(norm_after(2), 2 * norm_after(1), 1e-6);
      EXPECT_NEAR(norm_after(3), 3 * norm_after(1), 1e-6);
      for (const Tensor& p : rank.net.parameters()) EXPECT_FALSE(p.grad().defined());
      const double once = norm_after(1);
      {
        const auto guard = rank.zero->no_sync();
        rank.backward(0);  // stays here, and is dropped
      }
      EXPECT_TRUE(rank.net.in.weight.grad().defined());
      EXPECT_EQ(norm_after(1), once);
    });
  }
}

TEST(ZeroGradients, of_parameters_that_no_rank_used_are_absent) {
  for (int stage : kZeroStages) {
    run_local(2, [&](ProcessGroup& group) {
      ZeroPlan plan{.stage = stage, .unused = true};
      ZeroNet net(plan);
      ZeroDataParallel zero(net, group, test::zero_options(plan));
      optim::SGD sgd(zero.shards());
      zero.attach(sgd);
      const Tensor shard = zero.named_shards()["extra.weight"];
      const auto backward = [&](bool use) {
        sgd.zero_grad();
        net.branch = use;
        sum(net(ones({2, 5}))).backward();
      };
      backward(false);
      EXPECT_FALSE(shard.grad().defined());
      backward(group.rank() == 0);
      EXPECT_TRUE(shard.grad().defined());
      backward(false);
      EXPECT_FALSE(shard.grad().defined());
    });
  }
}

TEST(ZeroBackward, that_threw_leaves_nothing_behind) {
  for (int stage : kZeroStages) {
    ZeroPlan plan{.stage = stage, .ranks = 2};
    run_local(2, [&](ProcessGroup& group) {
      ZeroRank rank(plan, group);
      rank.backward(0);
      const double wanted = rank.zero->grad_norm();
      rank.optimizer->zero_grad();
      const int64_t bomb = rank.net.in.bias.register_post_accumulate_grad_hook(
          [](const Tensor&) { throw ValueError("half way"); });
      EXPECT_THROW(rank.backward(0), ValueError);
      rank.net.in.bias.remove_hook(bomb);
      rank.optimizer->zero_grad();
      rank.backward(0);
      EXPECT_EQ(rank.zero->grad_norm(), wanted);
      rank.train(2);
    });
  }
}

// A hook runs a backward of the whole model inside that of another forward.
Tensor nested_loss(ZeroRank& rank) {
  const Tensor x = test::zero_batch(rank.plan, 0, 5);
  const Tensor inner = sum(rank.net(x)), y = rank.net(x);
  y.register_hook([inner](const Tensor&) {
    inner.backward();
    return Tensor();
  });
  return sum(y);
}

TEST(ZeroBackward, inside_another_adds_its_gradients_while_nothing_was_sent) {
  for (int stage : kZeroStages) {
    run_local(2, [&](ProcessGroup& group) {
      ZeroRank rank({.stage = stage, .ranks = 2, .overlap = false}, group);
      sum(rank.net(test::zero_batch(rank.plan, 0, 5))).backward();
      const double once = rank.zero->grad_norm(INFINITY);
      rank.optimizer->zero_grad();
      nested_loss(rank).backward();
      EXPECT_NEAR(rank.zero->grad_norm(INFINITY), 2 * once, 1e-4 * once);
      rank.train(2);
    });
  }
}

TEST(ZeroBackward, inside_another_is_an_error_once_gradients_were_sent) {
  for (int stage : kZeroStages) {
    const auto errors = test::errors_of("local", 2, [&](ProcessGroup& group) {
      ZeroRank rank({.stage = stage, .ranks = 2}, group);
      nested_loss(rank).backward();
    });
    for (const std::string& error : errors) {
      test::expect_part(error, "got a second gradient in one backward on rank ");
      test::expect_part(error, "; call backward outside of hooks, or set overlap = false");
    }
  }
}

TEST(ZeroForwards, several_before_one_backward_are_summed) {
  for (int stage : kZeroStages) {
    run_local(2, [&](ProcessGroup& group) {
      ZeroRank rank({.stage = stage, .ranks = 2}, group);
      const Tensor x = test::zero_batch(rank.plan, 0, 5);
      sum(rank.net(x)).backward();
      const double once = rank.zero->grad_norm(INFINITY);
      rank.optimizer->zero_grad();
      const Tensor a = sum(rank.net(x)), b = sum(rank.net(x));
      (a + b).backward();
      EXPECT_NEAR(rank.zero->grad_norm(INFINITY), 2 * once, 1e-4 * once);
    });
  }
}

TEST(ZeroScaler, all_ranks_skip_what_one_of_them_finds_in_its_shards) {
  for (int stage : kZeroStages) {
    for (bool clips : {false, true}) {
      run_local(3, [&](ProcessGroup& group) {
        ZeroRank rank({.stage = stage, .ranks = 3, .scaled = true}, group);
        const size_t before = rank.weights();
        rank.backward(0);
        Tensor shard;  // the last that this rank has something of
        for (const auto& [name, s] : rank.zero->named_shards()) {
          if (s.numel() > 0) shard = s;
        }
        if (group.rank() == 1) raw::fill_(shard.grad(), INFINITY);
        if (clips) {
          EXPECT_EQ(rank.scaler.clip_grad_norm_(*rank.optimizer, 1), INFINITY);
        }
        EXPECT_FALSE(rank.scaler.step(*rank.optimizer));
        rank.scaler.update();
        EXPECT_EQ(rank.scaler.get_scale(), 512);
        EXPECT_EQ(rank.weights(), before);
      });
    }
  }
}

TEST(ZeroClip, is_by_the_norm_of_all_ranks_and_names_what_is_not_finite) {
  for (int stage : kZeroStages) {
    for (double type : {1.0, 2.0, static_cast<double>(INFINITY)}) {
      double alone = 0;
      run_local(1, [&](ProcessGroup& group) {
        ZeroRank rank({.stage = 0}, group);
        rank.backward(0);
        alone = optim::grad_norm(rank.net.parameters(), type);
      });
      run_local(3, [&](ProcessGroup& group) {
        ZeroRank rank({.stage = stage, .ranks = 3}, group);
        rank.backward(0);
        EXPECT_NEAR(rank.zero->grad_norm(type), alone, 1e-5 * alone);
        EXPECT_NEAR(rank.zero->clip_grad_norm_(0.01, type), alone, 1e-5 * alone);
        EXPECT_NEAR(rank.zero->grad_norm(type), 0.01, 1e-5);
      });
    }
    const auto errors = test::errors_of("local", 3, [&](ProcessGroup& group) {
      ZeroRank rank({.stage = stage, .ranks = 3}, group);
      rank.backward(0);
      const TensorDict shards = rank.zero->named_shards();
      const Tensor bad = shards["blocks.1.first.weight"].grad();
      if (bad.numel() > 0) raw::fill_(bad, INFINITY);
      rank.zero->clip_grad_norm_(1, 2, true);
    });
    for (const std::string& error : errors) {
      test::expect_part(error, "norm must be finite; got inf, first from 'blocks.1.first.weight'=");
      EXPECT_EQ(error, errors[0]);
    }
    run_local(3, [&](ProcessGroup& group) {
      ZeroRank rank({.stage = stage, .ranks = 3}, group);
      rank.backward(0);
      const TensorDict shards = rank.zero->named_shards();
      for (const auto& [name, shard] : shards) {
        if (group.rank() == 1 && shard.numel() > 0) raw::fill_(shard.grad(), NAN);
      }
      EXPECT_TRUE(std::isnan(rank.zero->clip_grad_norm_(1)));
      for (const auto& [name, shard] : shards) EXPECT_FALSE(shard.grad().defined()) << name;
    });
  }
}

}  // namespace
}  // namespace tarn::dist
