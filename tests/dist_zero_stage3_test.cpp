// dist_zero_stage3_test.cpp - ZeRO stage 3: parameters that come and go, and what finds them away.
#include <sstream>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/meta.h"
#include "tarn/autograd/node.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/nn/models/translator.h"
#include "tarn/tests/dist_zero_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::bits;
using test::bits_of;
using test::ZeroNet;
using test::ZeroPlan;
using test::ZeroRank;

constexpr const char* kAway =
    "ZeRO stage 3: in.weight is sharded, and its whole is not in memory now; call the module as a "
    "function, or read it inside zero.gathered(); got [";

const ZeroPlan kPlan{.stage = 3, .ranks = 2};

bool is_away(const Tensor& p) {
  return p.storage()->is_away();
}

TEST(ZeroStage3, reading_what_is_away_is_one_clear_error) {
  run_local(2, [](ProcessGroup& group) {
    ZeroRank rank(kPlan, group);
    const Tensor w = rank.net.in.weight, x = ones({2, 5});
    for (const Tensor& p : rank.net.parameters()) EXPECT_TRUE(is_away(p));
    EXPECT_EQ(w.sizes(), (Shape{7, 5}));
    EXPECT_THROWS_WITH(w.to_vector<float>(), ValueError, kAway);
    EXPECT_THROWS_WITH(w + 1.0, ValueError, kAway);
    EXPECT_THROWS_WITH(linear(x, w), ValueError, kAway);
    EXPECT_THROWS_WITH(sum(w), ValueError, kAway);
    EXPECT_THROWS_WITH(w.detach().clone(), ValueError, kAway);
    EXPECT_THROWS_WITH(bits(w), ValueError, kAway);
    EXPECT_THROWS_WITH(std::ostringstream() << w, ValueError, kAway);
    EXPECT_THROWS_WITH(rank.net.forward(x), ValueError, kAway);  // not called as a function
    EXPECT_THROWS_WITH(rank.net.load_state_dict(ZeroNet().state_dict()), ValueError,
                       "ZeRO stage 3: scale is sharded");
    rank.net(x);
  });
}

TEST(ZeroStage3, gathered_parameters_are_read_and_written_as_any) {
  run_local(3, [](ProcessGroup& group) {
    ZeroRank rank({.stage = 3, .ranks = 3}, group);
    ZeroNet other({}, 5);
    {
      const auto whole = rank.zero->gathered();
      EXPECT_EQ(bits_of(rank.net.parameters()), bits_of(ZeroNet().parameters()));
      rank.net.load_state_dict(other.state_dict());
      {
        const auto again = rank.zero->gathered();
        const Tensor x = ones({2, 5});
        EXPECT_EQ(bits(rank.net(x)), bits(other(x)));
        EXPECT_EQ(bits(rank.net.forward(x)), bits(other(x)));
      }
      EXPECT_FALSE(is_away(rank.net.in.weight));
      EXPECT_THROWS_WITH(rank.optimizer->step(), ValueError,
                         "zero: a step inside zero.gathered() would leave the gathered");
    }
    for (const Tensor& p : rank.net.parameters()) EXPECT_TRUE(is_away(p));
    const auto whole = rank.zero->gathered();
    EXPECT_EQ(bits_of(rank.net.parameters()), bits_of(other.parameters()));
  });
}

TEST(ZeroStage3, forwards_without_gradients_give_everything_back) {
  run_local(2, [](ProcessGroup& group) {
    ZeroRank rank(kPlan, group);
    ZeroNet alone;
    const Tensor x = ones({2, 5});
    for (int i = 0; i < 3; ++i) {
      const NoGradGuard no_grad;
      EXPECT_EQ(bits(rank.net(x)), bits(alone(x)));
      for (const Tensor& p : rank.net.parameters()) EXPECT_TRUE(is_away(p));
    }
  });
}

TEST(ZeroStage3, blocks_go_after_their_forward_and_after_their_backward) {
  run_local(2, [](ProcessGroup& group) {
    ZeroRank rank(kPlan, group);
    ZeroNet& net = rank.net;
    for (int i = 0; i < 3; ++i) {
      const Tensor loss = sum(net(ones({2, 5})));
      EXPECT_TRUE(is_away(net.blocks[0].first.weight));
      EXPECT_TRUE(is_away(net.blocks[2].first.weight));
      EXPECT_FALSE(is_away(net.in.weight));
      bool checked = false;
      const int64_t hook = net.in.bias.register_post_accumulate_grad_hook([&](const Tensor&) {
        checked = true;
        for (test::ZeroBlock* block : net.blocks) EXPECT_TRUE(is_away(block->second.weight));
      });
      loss.backward();
      net.in.bias.remove_hook(hook);
      EXPECT_TRUE(checked);
      for (const Tensor& p : net.parameters()) EXPECT_TRUE(is_away(p));
    }
  });
}

TEST(ZeroStage3, an_evaluation_between_forward_and_backward_changes_nothing) {
  run_local(2, [](ProcessGroup& group) {
    const auto norm = [&](bool evaluates) {
      ZeroRank rank(kPlan, group);
      Tensor loss = test::zero_loss(kPlan, rank.net, 0, 0, group.rank(), 2);
      if (evaluates) {
        const NoGradGuard no_grad;
        rank.net(ones({2, 5}));
      }
      loss.backward();
      return rank.zero->grad_norm();
    };
    EXPECT_EQ(norm(true), norm(false));
  });
}

TEST(ZeroStage3, a_graph_is_walked_twice_and_for_inputs_alone) {
  run_local(2, [](ProcessGroup& group) {
    ZeroRank rank(kPlan, group);
    ZeroNet alone;
    const Tensor x = ones({2, 5}), y = ones({2, 5});
    x.set_requires_grad();
    y.set_requires_grad();
    const Tensor loss = sum(rank.net(x)), theirs = sum(alone(y));
    EXPECT_EQ(bits(grad(loss, x, {}, {.retain_graph = true})),
              bits(grad(theirs, y, {}, {.retain_graph = true})));
    for (const Tensor& p : rank.net.parameters()) EXPECT_TRUE(is_away(p));
    loss.backward({}, true);
    const double once = rank.zero->grad_norm();
    loss.backward();
    EXPECT_NEAR(rank.zero->grad_norm(), 2 * once, 1e-6 * once);
  });
}

TEST(ZeroStage3, a_forward_that_throws_leaves_nothing_behind) {
  run_local(2, [](ProcessGroup& group) {
    ZeroRank rank(kPlan, group);
    const int64_t bomb = rank.net.blocks[1].register_forward_pre_hook(
        [](nn::Module&, const Tensor&) -> Tensor { throw ValueError("half way"); });
    EXPECT_THROW(rank.backward(0), ValueError);
    rank.net.blocks[1].remove_hook(bomb);
    rank.train(2);
    ZeroRank fresh(kPlan, group);
    fresh.train(2);
    EXPECT_EQ(rank.weights(), fresh.weights());
  });
}

TEST(ZeroStage3, a_module_that_is_converted_afterwards_is_an_error) {
  for (int stage : {1, 2}) {
    run_local(1, [&](ProcessGroup& group) {
      ZeroRank rank({.stage = stage}, group);
      rank.net.to(DType::kF64);
      EXPECT_THROWS_WITH(sum(rank.net(ones({2, 5}, {.dtype = DType::kF64}))).backward(), ValueError,
                         "was converted or moved after ZeroDataParallel was made; do that before");
    });
  }
  run_local(1, [&](ProcessGroup& group) {
    ZeroRank rank({.stage = 3}, group);
    EXPECT_THROWS_WITH(rank.net.to(DType::kF64), ValueError, "ZeRO stage 3: scale is sharded");
    ZeroNet& net = rank.net;
    EXPECT_THROWS_WITH(ZeroDataParallel(net, group), ValueError,
                       "zero: scale belongs to another ZeroDataParallel already; end that first");
  });
}

// The same on all ranks and in each run.
void fill_parameters(nn::Module& net) {
  unsigned seed = 0;
  for (Tensor& p : net.parameters()) {
    std::mt19937 random(++seed);
    for (int64_t i = 0; i < p.numel(); ++i) {
      p.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 200) - 100) / 250.f;
    }
  }
}

// Blocks that mostly do not train, as with adapters; one that does not at all; one that is called
// twice, side by side.
class Adapted : public nn::Module {
 public:
  Adapted() {
    for (int i = 0; i < 4; ++i) blocks.add(std::make_unique<test::ZeroBlock>());
    fill_parameters(*this);
    blocks[0].first.requires_grad_(false);
    blocks[1].requires_grad_(false);
    blocks[2].second.requires_grad_(false);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = in(x);
    h = blocks[1](blocks[0](h));
    h = blocks[2](relu(h)) * blocks[2](-h);
    return blocks[3](blocks[1](h));
  }
  nn::Linear in{this, "in", {.in = 7, .out = 7}};
  nn::ModuleList<test::ZeroBlock> blocks{this, "blocks"};
};

TEST(ZeroStage3, frozen_parameters_are_there_until_the_gradient_has_passed) {
  std::string wanted;
  for (int stage : {0, 1, 2, 3}) {
    run_local(2, [&](ProcessGroup& group) {
      Adapted net;
      test::Sharing sharing(net, group, {.stage = stage, .min_unit_numel = 1});
      optim::SGD sgd(sharing.held(), {.lr = 0.01});
      const std::string weights = test::bits_after_steps(net, group, sharing, sgd);
      if (group.rank() > 0) return;
      if (stage == 0) wanted = weights;
      EXPECT_TRUE(weights == wanted) << stage;
    });
  }
}

TEST(ZeroStage3, inputs_that_outlive_their_graphs_collect_no_hooks) {
  run_local(2, [](ProcessGroup& group) {
    Adapted net;
    ZeroDataParallel zero(net, group, {.stage = 3, .min_unit_numel = 1});
    const Tensor x = ones({3, 7});
    x.set_requires_grad();
    for (int i = 0; i < 3; ++i) {
      const auto guard = zero.no_sync();
      sum(net.blocks[0](x)).backward();  // mostly frozen, so that it waits for the gradient of x
      for (const Tensor& p : net.parameters()) EXPECT_TRUE(is_away(p));
    }
    const Edge edge = gradient_edge(x);
    EXPECT_TRUE(!edge.node->extras_if_any() || edge.node->extras().hooks.empty());
  });
}

// Linear layers in a list.
class Layers : public nn::Module {
 public:
  Layers() {
    for (int i = 0; i < kCount; ++i) layers.add<nn::Linear>({.in = kWidth, .out = kWidth});
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (nn::Linear* layer : layers) {
      h = checkpointed ? checkpoint([layer](const Tensor& t) { return (*layer)(t); }, h)
                       : (*layer)(h);
    }
    return h;
  }
  static constexpr int64_t kCount = 8, kWidth = 128;
  nn::ModuleList<nn::Linear> layers{this, "layers"};
  bool checkpointed = false;
};

TEST(ZeroStage3, autocast_keeps_no_casts_of_what_went) {
  run_local(1, [](ProcessGroup& group) {
    Layers net;
    ZeroDataParallel zero(net, group, {.stage = 3, .min_unit_numel = 1, .prefetch = false});
    optim::SGD sgd(zero.shards());
    zero.attach(sgd);
    const Tensor x = ones({1, Layers::kWidth});
    constexpr int64_t kCasts = 2 * Layers::kCount * Layers::kWidth * Layers::kWidth;
    for (bool evaluates : {true, false}) {
      net.checkpointed = !evaluates;
      const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
      const GradModeGuard recording(!evaluates);
      const int64_t before = memory_stats().allocated;
      const Tensor y = net(x);
      EXPECT_LT(memory_stats().allocated - before, kCasts / 4);
      if (evaluates) continue;
      sum(y).backward();
      sgd.zero_grad();
      EXPECT_LT(memory_stats().allocated - before, kCasts / 4);
    }
  });
}

// Its encode() passes the hooks of the model by.
TEST(ZeroStage3, gathered_serves_functions_that_run_no_hooks) {
  std::string wanted;
  for (int stage : {0, 3}) {
    run_local(2, [&](ProcessGroup& group) {
      nn::models::Translator net({.source_vocab = 11,
                                  .target_vocab = 9,
                                  .positions = 8,
                                  .layers = 2,
                                  .layer = {.size = 8, .heads = 2, .hidden = 12, .dropout = 0}});
      fill_parameters(net);
      test::Sharing sharing(net, group, {.stage = stage, .min_unit_numel = 1});
      optim::SGD sgd(sharing.held(), {.lr = 0.05});
      sharing.attach(sgd);
      const Tensor source = full({2, 4}, group.rank(), {.dtype = DType::kI64});
      const Tensor target = full({2, 3}, 2 + group.rank(), {.dtype = DType::kI64});
      if (sharing.zero)
        EXPECT_THROWS_WITH(net.encode(source), ValueError, "is sharded, and its whole");
      for (int step = 0; step < 3; ++step) {
        sgd.zero_grad();
        {
          const auto whole = sharing.gathered();
          const Tensor y = net.decode(target, net.encode(source));
          mean(y * y).backward();
        }
        sgd.step();
      }
      const auto whole = sharing.gathered();
      if (group.rank() > 0) return;
      const std::string weights = bits_of(net.parameters());
      if (stage == 0) wanted = weights;
      EXPECT_TRUE(weights == wanted);
    });
  }
}

}  // namespace
}  // namespace tarn::dist
