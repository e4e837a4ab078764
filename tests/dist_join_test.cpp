// dist_join_test.cpp - ranks with different numbers of batches, and graphs that stay the same.
#include <algorithm>
#include <optional>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/dist/ddp.h"
#include "tarn/dist/join.h"
#include "tarn/nn/linear.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

constexpr int kRanks = 3;
constexpr int kBatches[kRanks] = {2, 5, 3};  // rank 1 goes on longest, alone in the end

class Net : public nn::Module {
 public:
  Net() {
    int64_t i = 0;
    for (Tensor& p : parameters()) {
      for (int64_t k = 0; k < p.numel(); ++k, ++i) {
        p.data<float>()[k] = static_cast<float>(i * 7 % 11 - 5) / 20.f;
      }
    }
  }
  Tensor forward(const Tensor& x) override {
    raw::add_(seen, ones({1}));
    const Tensor h = relu(in(x));
    return out(use_side ? h + side(h) : h);
  }
  nn::Linear in{this, "in", {.in = 4, .out = 5}};
  nn::Linear side{this, "side", {.in = 5, .out = 5}};
  nn::Linear out{this, "out", {.in = 5, .out = 2}};
  nn::Buffer seen{this, "seen", zeros({1})};
  bool use_side = true;
};

Tensor batch_of(int rank, int step) {
  Tensor x = empty({3, 4});
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>((i * 5 + rank * 3 + step * 7) % 13) / 6.f - 1;
  }
  return x;
}

Tensor loss_of(Net& net, const Tensor& x) {
  const Tensor y = net(x);
  return mean(y * y);
}

std::vector<double> weights(nn::Module& net) {
  std::vector<double> all;
  for (const Tensor& p : net.parameters()) {
    const auto values = p.to_vector<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// One process: the mean over all ranks (or those that are left) of the losses at each step.
std::vector<double> alone(bool by_all) {
  Net net;
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  for (int step = 0; step < 5; ++step) {
    std::vector<Tensor> losses;
    for (int r = 0; r < kRanks; ++r) {
      if (step < kBatches[r]) losses.push_back(loss_of(net, batch_of(r, step)));
    }
    Tensor sum = losses[0];
    for (size_t i = 1; i < losses.size(); ++i) sum = sum + losses[i];
    sgd.zero_grad();
    (sum / (by_all ? 1.0 * kRanks : static_cast<double>(losses.size()))).backward();
    sgd.step();
  }
  return weights(net);
}

void train_joined(ProcessGroup& group, const DdpOptions& options, const JoinOptions& join_options,
                  const std::vector<double>& wanted) {
  Net net;
  DistributedDataParallel ddp(net, group, options);
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  Join join(ddp, join_options);
  for (int step = 0; step < kBatches[group.rank()]; ++step) {
    sgd.zero_grad();
    loss_of(net, batch_of(group.rank(), step)).backward();
    sgd.step();
  }
  join.finish();
  const auto ours = weights(net);
  for (size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], wanted[i], 1e-6);
  ddp.check_replicas();
  EXPECT_EQ(net.seen.item(), 5) << "a buffer of the rank that went on to the end";
}

TEST(Join, uneven_ranks_train_as_one_process_would) {
  for (const bool by_all : {true, false}) {
    const auto wanted = alone(by_all);
    for (const double cap : {0.01 / 1024, 25.0}) {
      for (const bool buffers : {true, false}) {
        for (const bool fixed : {true, false}) {
          run_local(kRanks, [&](ProcessGroup& group) {
            train_joined(group,
                         {.bucket_cap_mb = cap,
                          .first_bucket_mb = cap,
                          .find_unused_parameters = buffers,
                          .static_graph = fixed,
                          .broadcast_buffers = buffers,
                          .check_every = 2},
                         {.divide_by_initial_world_size = by_all}, wanted);
          });
        }
      }
    }
  }
}

TEST(Join, a_rank_without_any_batch_gets_the_model_of_the_others) {
  run_local(2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    Join join(ddp);
    for (int step = 0; step < 2 * group.rank(); ++step) {
      sgd.zero_grad();
      loss_of(net, batch_of(1, step)).backward();
      sgd.step();
    }
    join.finish();
    ddp.check_replicas();
    EXPECT_NE(weights(net), weights(*std::make_unique<Net>()));
    EXPECT_EQ(net.in.weight.grad().defined(), group.rank() == 1);
    // The loop after it is an ordinary one again.
    net.zero_grad();
    loss_of(net, batch_of(group.rank(), 0)).backward();
    EXPECT_TRUE(net.in.weight.grad().defined());
    Join nobody(ddp);
    nobody.finish();
  });
}

// At the last exchange both ranks go on; what rank 1 does afterwards tells nobody.
TEST(Join, the_final_buffers_are_of_the_rank_that_went_on_without_sync) {
  run_local(2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    Join join(ddp);
    for (int step = 0; step < 2 + 3 * group.rank(); ++step) {
      std::optional<DistributedDataParallel::NoSync> alone;
      if (step >= 2) alone.emplace(ddp.no_sync());
      loss_of(net, batch_of(group.rank(), step)).backward();
    }
    join.finish();
    EXPECT_EQ(net.seen.item(), 5);
  });
}

TEST(Join, steps_between_checks_are_counted_anew) {
  run_local(kRanks, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group, {.broadcast_buffers = false, .check_every = 2});
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    const auto train = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        sgd.zero_grad();
        loss_of(net, batch_of(group.rank(), step)).backward();
        sgd.step();
      }
    };
    for (int epoch = 0; epoch < 2; ++epoch) {
      Join join(ddp);
      train(kBatches[group.rank()]);
      join.finish();
    }
    train(4);
    ddp.check_replicas();
  });
}

TEST(Join, an_early_end_can_be_an_error_on_all_ranks) {
  const auto errors = test::errors_of("local", kRanks, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    Join join(ddp, {.throw_on_early_termination = true});
    for (int step = 0; step < kBatches[group.rank()]; ++step) {
      loss_of(net, batch_of(group.rank(), step)).backward();
    }
    join.finish();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "join: rank 0 of 3 had fewer batches than ranks 1, 2");
  }
}

TEST(Join, steps_that_differ_are_named) {
  const auto errors = test::errors_of("local", 2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    Join join(ddp);
    EXPECT_THROWS_WITH(Join{ddp}, ValueError, "join: this ddp has one already");
    const Tensor loss = loss_of(net, batch_of(0, 0));
    if (group.rank() == 1) loss_of(net, batch_of(0, 1));
    loss.backward();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "join: rank 1 begins a forward where rank 0 begins a backward; all ranks must take "
              "the same steps as long as they have batches");
  }
}

TEST(StaticGraph, what_the_first_backward_left_out_is_not_waited_for) {
  run_local(2, [](ProcessGroup& group) {
    const DdpOptions small{.bucket_cap_mb = 1e-5, .first_bucket_mb = 1e-5, .static_graph = true};
    Net net;
    DistributedDataParallel ddp(net, group, small);
    net.use_side = group.rank() == 0;
    std::vector<double> first;
    for (int step = 0; step < 4; ++step) {
      net.zero_grad();
      loss_of(net, batch_of(group.rank(), 0)).backward();
      // Used on rank 0, so both have the average.
      ASSERT_TRUE(net.side.weight.grad().defined());
      const auto g = net.side.weight.grad().to_vector<double>();
      if (step == 0) first = g;
      EXPECT_EQ(g, first);
      const Tensor mine = net.side.weight.grad().clone();
      group.broadcast(mine, 0)->wait();
      EXPECT_EQ(test::bits(mine), test::bits(net.side.weight.grad()));
    }
  });
  run_local(2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group, {.static_graph = true});
    net.use_side = false;
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      loss_of(net, batch_of(group.rank(), step)).backward();
      EXPECT_FALSE(net.side.weight.grad().defined()) << "nobody used it";
    }
  });
}

TEST(StaticGraph, is_learned_when_every_rank_has_a_backward_of_its_own) {
  run_local(2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group, {.static_graph = true});
    net.use_side = false;
    {
      Join join(ddp);
      for (int step = 0; step < 2 * group.rank(); ++step) {
        net.zero_grad();
        loss_of(net, batch_of(1, step)).backward();
      }
      join.finish();
    }
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      loss_of(net, batch_of(group.rank(), step)).backward();
      EXPECT_TRUE(net.in.weight.grad().defined());
      EXPECT_FALSE(net.side.weight.grad().defined()) << "nobody used it";
    }
  });
}

TEST(StaticGraph, another_graph_is_an_error_that_names_the_parameters) {
  const auto errors = [](bool before, bool after) {
    return test::errors_of("local", 2, [=](ProcessGroup& group) {
      Net net;
      DistributedDataParallel ddp(net, group, {.static_graph = true});
      net.use_side = before;
      loss_of(net, batch_of(0, 0)).backward();
      net.zero_grad();
      net.use_side = group.rank() == 1 ? after : before;
      loss_of(net, batch_of(0, 1)).backward();
    });
  };
  for (const std::string& error : errors(true, false)) {
    EXPECT_NE(error.find("2 of 6 parameters got no gradient in this backward on rank 1: "
                         "side.weight, side.bias; with static_graph every backward must use the "
                         "same parameters as the first"),
              std::string::npos)
        << error;
  }
  for (const std::string& error : errors(false, true)) {
    EXPECT_NE(error.find("ddp: static_graph: side."), std::string::npos) << error;
    EXPECT_NE(error.find(" got a gradient on rank 1, which it did not in the first backward"),
              std::string::npos)
        << error;
  }
}

TEST(ReducerStats, tell_each_buckets_way) {
  run_local(2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 1e-5, .first_bucket_mb = 1e-5});
    loss_of(net, batch_of(group.rank(), 0)).backward();
    const ReducerStats& stats = ddp.stats();
    ASSERT_EQ(stats.each.size(), 6u);  // none of the parameters fits beside another
    EXPECT_EQ(stats.buckets, 6);
    int64_t bytes = 0;
    double comm = 0, sent = 0;
    for (const BucketStats& b : stats.each) {
      bytes += b.bytes;
      comm += b.comm;
      EXPECT_EQ(b.parameters, 1);
      EXPECT_GE(b.sent_at, sent);  // in this order
      sent = b.sent_at;
    }
    EXPECT_EQ(bytes, net.num_parameters() * 4);
    EXPECT_EQ(bytes, stats.bytes);
    EXPECT_DOUBLE_EQ(comm, stats.comm_seconds);
    EXPECT_GE(stats.compute_seconds, sent);
    const std::string table = stats.table();
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 7) << table;
  });
}

}  // namespace
}  // namespace tarn::dist
