// dist_zero_state_test.cpp - ZeRO: optimizer state for any number of ranks, master copies, memory.
#include <array>
#include <atomic>

#include "tarn/core/raw_elementwise.h"
#include "tarn/tests/dist_zero_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::bits;
using test::kZeroStages;
using test::ZeroNet;
using test::ZeroPlan;
using test::ZeroRank;

TensorDict copy_of(const TensorDict& dict) {
  TensorDict copy;
  for (const auto& [name, tensor] : dict) copy.add(name, tensor.clone());
  return copy;
}

// What a checkpoint holds.
struct Saved {
  TensorDict model, optimizer;
};

Saved save(ZeroRank& rank) {
  const auto whole = rank.gathered();
  return {copy_of(rank.net.state_dict()), rank.zero
                                              ? rank.zero->full_optimizer_state(*rank.optimizer)
                                              : copy_of(rank.optimizer->state_dict())};
}

void load(ZeroRank& rank, const Saved& saved, int step) {
  {
    const auto whole = rank.gathered();
    rank.net.load_state_dict(saved.model);
  }
  if (rank.zero) {
    rank.zero->load_optimizer_state(*rank.optimizer, saved.optimizer);
  } else {
    rank.optimizer->load_state_dict(saved.optimizer);
  }
  rank.step = step;
}

void expect_same(const TensorDict& ours, const TensorDict& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) {
    ASSERT_TRUE(ours.contains(name)) << name;
    EXPECT_EQ(ours[name].sizes(), tensor.sizes()) << name;
    EXPECT_EQ(ours[name].dtype(), tensor.dtype()) << name;
    EXPECT_EQ(bits(ours[name]), bits(tensor)) << name;
  }
}

TEST(ZeroState, is_that_of_ddp_and_only_rank_0_gets_it) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    ZeroPlan plan{.stage = 0, .ranks = 3, .adam = true, .dtype = dtype};
    Saved ddp;
    run_local(3, [&](ProcessGroup& group) {
      ZeroRank rank(plan, group);
      rank.train(3);
      if (group.rank() == 0) ddp = save(rank);
    });
    for (int stage : kZeroStages) {
      plan.stage = stage;
      run_local(3, [&](ProcessGroup& group) {
        ZeroRank rank(plan, group);
        rank.train(3);
        const TensorDict full = rank.zero->full_optimizer_state(*rank.optimizer);
        const TensorDict all = rank.zero->full_optimizer_state(*rank.optimizer, true);
        EXPECT_EQ(full.size(), group.rank() == 0 ? all.size() : 0);
        expect_same(all, ddp.optimizer);
      });
    }
  }
}

TEST(ZeroState, saved_at_4_ranks_continues_at_any_number_and_stage) {
  for (bool adam : {false, true}) {
    ZeroPlan plan{.stage = 2, .ranks = 4, .micro_batches = 2, .adam = adam};
    Saved saved;
    std::vector<double> wanted;
    size_t wanted_bits = 0;
    run_local(4, [&](ProcessGroup& group) {
      ZeroRank rank(plan, group);
      rank.train(3);
      Saved here = save(rank);
      rank.train(6);
      const size_t weights = rank.weights();
      if (group.rank() > 0) return;
      saved = std::move(here);
      wanted = rank.values();
      wanted_bits = weights;
    });
    for (int stage : {0, 1, 2, 3}) {
      for (int ranks : {1, 2, 3, 4}) {
        plan.stage = stage;
        plan.ranks = ranks;
        plan.seed = 1;
        run_local(ranks, [&](ProcessGroup& group) {
          ZeroRank rank(plan, group);
          load(rank, saved, 3);
          rank.train(6);
          const size_t weights = rank.weights();
          EXPECT_TRUE(ranks != 4 || weights == wanted_bits) << plan.text();
          const auto ours = rank.values();
          for (size_t i = 0; i < ours.size(); ++i) {
            ASSERT_NEAR(ours[i], wanted[i], 2e-6) << plan.text();
          }
        });
      }
    }
  }
}

TEST(ZeroState, goes_and_comes_over_every_transport) {
  for (const char* transport : {"host", "gloo", "nccl"}) {
    if (!test::why_not(transport, 3).empty()) continue;
    for (int stage : kZeroStages) {
      const ZeroPlan plan{.stage = stage, .ranks = 3, .adam = true};
      test::run_ranks(transport, 3, [&](ProcessGroup& group) {
        ZeroRank rank(plan, group);
        rank.train(2);
        const TensorDict full = rank.zero->full_optimizer_state(*rank.optimizer, true);
        EXPECT_EQ(full["state.1.exp_avg"].sizes(), (Shape{7, 5}));
        const TensorDict before = copy_of(rank.optimizer->state_dict());
        rank.train(4);
        rank.zero->load_optimizer_state(*rank.optimizer, full);
        expect_same(rank.optimizer->state_dict(), before);
      });
    }
  }
}

TEST(ZeroState, of_groups_that_decay_and_do_not) {
  ZeroPlan plan{.stage = 0, .ranks = 2, .frozen = true};
  std::array<std::string, 4> weights;
  std::array<TensorDict, 4> states;
  for (int stage : {0, 1, 2, 3}) {
    plan.stage = stage;
    run_local(2, [&](ProcessGroup& group) {
      ZeroNet net(plan);
      const auto groups =
          optim::decay_groups(net.named_parameters(), optim::AdamWOptions{.lr = 0.02});
      std::optional<DistributedDataParallel> ddp;
      std::optional<ZeroDataParallel> zero;
      if (stage == 0) {
        ddp.emplace(net, group);
      } else {
        zero.emplace(net, group, test::zero_options(plan));
      }
      optim::AdamW adamw(zero ? zero->shard(groups) : groups);
      if (zero) zero->attach(adamw);
      for (int step = 0; step < 3; ++step) {
        adamw.zero_grad();
        test::zero_loss(plan, net, step, 0, group.rank(), 2).backward();
        adamw.step();
      }
      const TensorDict state =
          zero ? zero->full_optimizer_state(adamw) : copy_of(adamw.state_dict());
      std::optional<ZeroDataParallel::Gathered> whole;
      if (zero) whole.emplace(zero->gathered());
      if (group.rank() > 0) return;
      for (const Tensor& p : net.parameters()) weights[stage] += bits(p);
      states[stage] = state;
    });
  }
  for (int stage : kZeroStages) {
    EXPECT_EQ(weights[stage], weights[0]);
    expect_same(states[stage], states[0]);
  }
}

TEST(ZeroState, that_does_not_fit_is_listed_and_changes_nothing) {
  for (int stage : kZeroStages) {
    run_local(2, [&](ProcessGroup& group) {
      ZeroRank rank({.stage = stage, .ranks = 2, .adam = true}, group);
      rank.train(2);
      const TensorDict full = rank.zero->full_optimizer_state(*rank.optimizer, true);
      TensorDict wrong, unexpected, missing;
      for (const auto& [name, tensor] : full) {
        wrong.add(name, name == "state.1.exp_avg" ? zeros({2, 2}) : tensor);
        unexpected.add(name, tensor);
        if (name != "param_groups.0.params") missing.add(name, tensor);
      }
      unexpected.add("state.99.exp_avg", zeros({1}));
      const std::string before = bits(rank.optimizer->state_dict()["state.1.exp_avg"]);
      EXPECT_THROWS_WITH(rank.zero->load_optimizer_state(*rank.optimizer, wrong), ValueError,
                         "another shape: state.1.exp_avg=[2, 2] f32 cpu, the parameter in.weight "
                         "is [7, 5] f32 cpu");
      EXPECT_THROWS_WITH(rank.zero->load_optimizer_state(*rank.optimizer, unexpected), ValueError,
                         "unexpected: state.99.exp_avg=[1] f32 cpu");
      EXPECT_THROWS_WITH(rank.zero->load_optimizer_state(*rank.optimizer, missing), ValueError,
                         "missing: param_groups.0.params");
      // A rank's own state is not the whole.
      EXPECT_THROWS_WITH(
          rank.zero->load_optimizer_state(*rank.optimizer, rank.optimizer->state_dict()),
          ValueError, "the state must be that of whole parameters");
      EXPECT_EQ(bits(rank.optimizer->state_dict()["state.1.exp_avg"]), before);
    });
  }
  const auto errors = test::errors_of("local", 2, [](ProcessGroup& group) {
    ZeroRank rank({.stage = 1, .ranks = 2, .adam = true}, group);
    optim::AdamW alone(rank.zero->shards());
    const Tensor shard = rank.zero->named_shards()["in.weight"];
    if (group.rank() == 1) shard.set_grad(zeros(shard.sizes()));
    alone.step();
    rank.zero->full_optimizer_state(alone);
  });
  for (const std::string& error : errors) {
    test::expect_part(error, "full_optimizer_state: the optimizers must hold state for the same");
  }
}

TEST(ZeroMasters, take_over_what_others_write_to_the_parameters) {
  ZeroPlan plan{.stage = 0, .ranks = 2, .adam = true, .dtype = DType::kBF16};
  std::array<size_t, 4> weights{};
  for (int stage : {0, 1, 2, 3}) {
    plan.stage = stage;
    run_local(2, [&](ProcessGroup& group) {
      ZeroRank rank(plan, group);
      rank.train(2);
      {
        const auto whole = rank.gathered();
        rank.net.load_state_dict(ZeroNet(plan, 77).state_dict());
      }
      rank.train(4);
      const size_t here = rank.weights();
      if (group.rank() == 0) weights[stage] = here;
    });
  }
  for (int stage : kZeroStages) EXPECT_EQ(weights[stage], weights[0]) << stage;
}

// Many numbers, in a few layers.
class Wide : public nn::Module {
 public:
  Wide() {
    for (int i = 0; i < 8; ++i) layers.add<nn::Linear>({.in = 256, .out = 256});
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (nn::Linear* layer : layers) h = relu((*layer)(h));
    return h;
  }
  nn::ModuleList<nn::Linear> layers{this, "layers"};
};

// Bytes of all ranks, in parameters of f32 of one rank.
struct Held {
  double parameters, gradients, optimizer;
};

Held held_by(int stage, int ranks) {
  Held held{};
  std::array<int64_t, kNumMemoryTags> before{};
  std::copy_n(memory_stats().by_tag, kNumMemoryTags, before.begin());
  run_local(ranks, [&](ProcessGroup& group) {
    Wide net;
    test::Sharing sharing(net, group, {.stage = stage, .min_unit_numel = 1000});
    optim::AdamW adamw(sharing.held());
    sharing.attach(adamw);
    const auto backward = [&] { sum(net(ones({2, 256}))).backward(); };
    backward();
    adamw.step();
    adamw.zero_grad();
    backward();
    group.barrier()->wait();
    if (group.rank() == 0) {
      const MemoryStats now = memory_stats();
      const auto of = [&](MemoryTag tag) {
        const auto i = static_cast<size_t>(tag);
        return static_cast<double>(now.by_tag[i] - before[i]) /
               (4.0 * static_cast<double>(net.num_parameters()));
      };
      held = {of(MemoryTag::kParameters), of(MemoryTag::kGradients), of(MemoryTag::kOptimizer)};
    }
    group.barrier()->wait();
  });
  return held;
}

TEST(ZeroMemory, is_what_the_stages_promise) {
  const auto expect = [](const Held& held, const Held& wanted) {
    EXPECT_NEAR(held.parameters, wanted.parameters, 0.05 * wanted.parameters);
    EXPECT_NEAR(held.gradients, wanted.gradients, 0.05 * wanted.gradients);
    EXPECT_NEAR(held.optimizer, wanted.optimizer, 0.05 * wanted.optimizer);
  };
  expect(held_by(0, 4), {4, 4, 8});
  expect(held_by(1, 4), {4, 4 + 1, 2});
  expect(held_by(2, 4), {4, 1, 2});
  expect(held_by(3, 4), {1, 1, 2});
}

// Layers are an eighth of the model each, and four ranks own all of it together.
TEST(ZeroMemory, of_stage_3_is_that_of_the_pieces_and_few_units) {
  for (bool prefetch : {false, true}) {
    const auto tag = static_cast<size_t>(MemoryTag::kParameters);
    const int64_t before = memory_stats().by_tag[tag];
    std::atomic<int64_t> most = 0;
    run_local(4, [&](ProcessGroup& group) {
      Wide net;
      ZeroDataParallel zero(net, group, {.stage = 3, .min_unit_numel = 1000, .prefetch = prefetch});
      optim::SGD sgd(zero.shards());
      zero.attach(sgd);
      group.barrier()->wait();
      const auto look = [&] {
        int64_t seen = most;
        const int64_t now = memory_stats().by_tag[tag] - before;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
      };
      for (nn::Linear* layer : net.layers) {
        layer->register_forward_hook([&](nn::Module&, const Tensor&, const Tensor& y) {
          y.register_hook([&](const Tensor&) {
            look();
            return Tensor();
          });
          look();
          return Tensor();
        });
      }
      for (int step = 0; step < 3; ++step) {
        sgd.zero_grad();
        sum(net(ones({2, 256}))).backward();
        sgd.step();
        group.barrier()->wait();
      }
    });
    const double model = 4.0 * static_cast<double>(Wide().num_parameters());
    const double units = prefetch ? 3 : 2;  // the one that computes, the next, one that goes
    EXPECT_LT(static_cast<double>(most.load()), 1.05 * (1 + 4 * units / 8) * model);
  }
}

}  // namespace
}  // namespace tarn::dist
