// dist_ddp_test.cpp - DDP: equal to one process, equal bits whatever the buckets and the timing.
#include <random>
#include <thread>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/random.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/ddp.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/norm.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

using test::bits;
using test::run_ranks;

// Shared weights, a frozen parameter, a branch that may be left out, a buffer.
class Net : public nn::Module {
 public:
  explicit Net(int64_t seed = 1) {
    std::mt19937 random(static_cast<unsigned>(seed));
    for (Tensor& p : parameters()) {
      for (int64_t i = 0; i < p.numel(); ++i) {
        p.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 200) - 100) / 250.f;
      }
    }
    shared.weight.tie(hidden.weight);
    frozen.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor h = relu(hidden(relu(in(x)) + frozen));
    const Tensor y = use_extra ? shared(h) + extra(h) : shared(h);
    return out(relu(y));
  }
  nn::Linear in{this, "in", {.in = 6, .out = 8}};
  nn::Linear hidden{this, "hidden", {.in = 8, .out = 8}};
  nn::Linear shared{this, "shared", {.in = 8, .out = 8}};
  nn::Linear extra{this, "extra", {.in = 8, .out = 8}};
  nn::Linear out{this, "out", {.in = 8, .out = 3}};
  nn::Parameter frozen{this, "frozen", zeros({8})};
  nn::Buffer counter{this, "counter", zeros({2})};
  bool use_extra = true;
};

constexpr int64_t kGlobalBatch = 12;  // divisible by 1, 2, 3, 4

Tensor data_of(int step, int64_t columns, unsigned salt) {
  std::mt19937 random(static_cast<unsigned>(step) * 31 + salt);
  std::vector<float> values(static_cast<size_t>(kGlobalBatch * columns));
  for (float& v : values) v = static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 700.f;
  return from_vector(values, {kGlobalBatch, columns});
}

Tensor rows_of(const Tensor& x, int rank, int size, Device device = kCPU) {
  const int64_t n = kGlobalBatch / size;
  return raw::to(raw::contiguous(raw::narrow(x, 0, rank * n, n)), device);
}

Tensor loss_of(Net& net, const Tensor& x, const Tensor& y) {
  const Tensor d = net(x) - y;
  return mean(d * d);
}

std::string bits(nn::Module& net) {
  std::string all;
  for (const Tensor& p : net.parameters()) all += bits(p);
  return all;
}

struct Trained {
  std::vector<double> losses;  // of the global batch
  std::string weights;         // bits
};

// Trains on `size` ranks and returns what all of them agree on.
Trained train(const std::string& transport, int size, int steps, const DdpOptions& options,
              unsigned delays = 0) {
  std::vector<Trained> results(static_cast<size_t>(size));
  run_ranks(transport, size, [&](ProcessGroup& group) {
    Net net(group.rank() + 1);  // rank 0's values win
    const Device device = test::device_of(group);
    net.to(device);
    DistributedDataParallel ddp(net, group, options);
    std::mt19937 random(delays * 100 + static_cast<unsigned>(group.rank()));
    if (delays > 0) {
      for (const Tensor& p : net.parameters()) {
        if (!p.requires_grad()) continue;
        p.register_post_accumulate_grad_hook([&](const Tensor&) {
          if (random() % 4 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
        });
      }
    }
    optim::SGD sgd(net.parameters(), {.lr = 0.05, .momentum = 0.9});
    Trained& result = results[static_cast<size_t>(group.rank())];
    for (int step = 0; step < steps; ++step) {
      sgd.zero_grad();
      const Tensor loss = loss_of(net, rows_of(data_of(step, 6, 1), group.rank(), size, device),
                                  rows_of(data_of(step, 3, 2), group.rank(), size, device));
      loss.backward();
      sgd.step();
      const Tensor average = loss.detach().clone();
      group.all_reduce(average, ReduceOp::kAvg)->wait();
      result.losses.push_back(average.item());
    }
    result.weights = bits(net);
    ddp.check_replicas();
  });
  for (const Trained& r : results) EXPECT_EQ(r.weights, results[0].weights);
  return results[0];
}

// One process: the same global batch at once.
Trained train_alone(int steps) {
  Net net(1);
  optim::SGD sgd(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  Trained result;
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    const Tensor loss = loss_of(net, data_of(step, 6, 1), data_of(step, 3, 2));
    loss.backward();
    sgd.step();
    result.losses.push_back(loss.item());
  }
  return result;
}

class Ddp : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string why = test::why_not(GetParam(), 4);
    if (!why.empty()) GTEST_SKIP() << why;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Ddp, testing::Values("local", "host", "gloo", "nccl"));

TEST_P(Ddp, losses_equal_those_of_one_process) {
  const Trained alone = train_alone(50);
  for (int size : {1, 2, 3, 4}) {
    const Trained ranks = train(GetParam(), size, 50, {});
    for (size_t i = 0; i < alone.losses.size(); ++i) {
      ASSERT_NEAR(ranks.losses[i], alone.losses[i], 1e-6) << size << " ranks, step " << i;
    }
  }
}

TEST(DdpBits, buckets_overlap_and_timing_change_nothing) {
  for (int size : {2, 3}) {
    const Trained reference = train("local", size, 6, {});
    for (double cap : {1.0 / 1024, 0.3 / 1024, 25.0}) {
      for (bool overlap : {true, false}) {
        const DdpOptions options{.bucket_cap_mb = cap, .first_bucket_mb = cap, .overlap = overlap};
        EXPECT_EQ(train("local", size, 6, options).weights, reference.weights) << cap;
      }
    }
    const DdpOptions small{
        .bucket_cap_mb = 0.3 / 1024, .first_bucket_mb = 0.1 / 1024, .last_bucket_mb = 0.2 / 1024};
    for (unsigned seed = 1; seed <= 20; ++seed) {
      EXPECT_EQ(train("local", size, 6, small, seed).weights, reference.weights) << seed;
    }
    EXPECT_EQ(train("local", size, 6, {.find_unused_parameters = true}).weights, reference.weights);
  }
}

TEST(DdpGradients, are_the_average_over_the_ranks) {
  run_local(3, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group,
                                {.bucket_cap_mb = 0.3 / 1024, .first_bucket_mb = 0.1 / 1024});
    for (int round = 0; round < 3; ++round) {  // the second round has other buckets
      std::vector<std::vector<Tensor>> local;
      for (int r = 0; r < 3; ++r) {
        Net replica;
        loss_of(replica, rows_of(data_of(round, 6, 1), r, 3), rows_of(data_of(round, 3, 2), r, 3))
            .backward();
        local.emplace_back();
        for (const Tensor& p : replica.parameters()) local.back().push_back(p.grad());
      }
      net.zero_grad();
      loss_of(net, rows_of(data_of(round, 6, 1), group.rank(), 3),
              rows_of(data_of(round, 3, 2), group.rank(), 3))
          .backward();
      const auto params = net.parameters();
      for (size_t i = 0; i < params.size(); ++i) {
        if (!params[i].requires_grad()) continue;
        const float* a = local[0][i].data<float>();
        const float* b = local[1][i].data<float>();
        const float* c = local[2][i].data<float>();
        for (int64_t k = 0; k < params[i].numel(); ++k) {
          ASSERT_EQ(params[i].grad().data<float>()[k], ((a[k] + b[k]) + c[k]) / 3.f);
        }
      }
      EXPECT_GT(ddp.stats().buckets, 3);
      EXPECT_GT(ddp.stats().bytes, 0);
    }
  });
}

TEST(DdpNoSync, micro_batches_add_up_to_the_whole) {
  run_local(2, [](ProcessGroup& group) {
    const auto gradients = [&](bool accumulate) {
      Net net;
      DistributedDataParallel ddp(net, group);
      const Tensor x = rows_of(data_of(0, 6, 1), group.rank(), 2);
      const Tensor y = rows_of(data_of(0, 3, 2), group.rank(), 2);
      for (int i = 0; accumulate && i < 2; ++i) {
        const auto guard = ddp.no_sync();
        (loss_of(net, raw::narrow(x, 0, 2 * i, 2), raw::narrow(y, 0, 2 * i, 2)) / 3.0).backward();
      }
      if (accumulate) {
        (loss_of(net, raw::narrow(x, 0, 4, 2), raw::narrow(y, 0, 4, 2)) / 3.0).backward();
      } else {
        loss_of(net, x, y).backward();
      }
      std::vector<double> all;
      for (const Tensor& p : net.parameters()) {
        if (!p.requires_grad()) continue;
        const auto values = p.grad().to_vector<double>();
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    };
    const auto whole = gradients(false), parts = gradients(true);
    for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(parts[i], whole[i], 1e-6);
  });
}

TEST(DdpForwards, several_before_one_backward_are_summed) {
  run_local(2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    const Tensor x = rows_of(data_of(0, 6, 1), group.rank(), 2);
    const Tensor a = sum(net(x)), b = sum(net(x));
    (a + b).backward();
    const auto twice = net.in.weight.grad().to_vector<double>();
    net.zero_grad();
    sum(net(x)).backward();
    const auto once = net.in.weight.grad().to_vector<double>();
    for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], 2 * once[i], 1e-5);
  });
}

TEST(DdpBackward, adding_to_gradients_that_are_averages_keeps_them) {
  run_local(2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    const auto backward = [&](int step) {
      loss_of(net, rows_of(data_of(step, 6, 1), group.rank(), 2),
              rows_of(data_of(step, 3, 2), group.rank(), 2))
          .backward();
    };
    std::vector<double> sum(48);
    for (int step : {0, 1, 2}) {
      net.zero_grad();
      backward(step);
      const auto g = net.in.weight.grad().to_vector<double>();
      for (size_t i = 0; i < g.size(); ++i) sum[i] += g[i];
    }
    net.zero_grad();
    for (int step : {0, 1, 2}) backward(step);
    const auto g = net.in.weight.grad().to_vector<double>();
    for (size_t i = 0; i < g.size(); ++i) ASSERT_NEAR(g[i], sum[i], 1e-6);
  });
}

TEST(DdpUnused, a_parameter_without_gradient_is_named_on_all_ranks) {
  const auto errors = test::errors_of("local", 2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    net.use_extra = group.rank() == 0;  // rank 1 goes another way
    loss_of(net, rows_of(data_of(0, 6, 1), group.rank(), 2),
            rows_of(data_of(0, 3, 2), group.rank(), 2))
        .backward();
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("2 of 9 parameters got no gradient in this backward on rank 1: "
                         "extra.weight, extra.bias; leave them out"),
              std::string::npos)
        << error;
  }
}

TEST(DdpUnused, what_some_ranks_use_is_averaged_and_what_none_uses_stays_absent) {
  run_local(2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    const auto backward = [&](bool use) {
      net.zero_grad();
      net.use_extra = use;
      loss_of(net, rows_of(data_of(0, 6, 1), group.rank(), 2),
              rows_of(data_of(0, 3, 2), group.rank(), 2))
          .backward();
    };
    backward(false);
    EXPECT_FALSE(net.extra.weight.grad().defined());
    EXPECT_TRUE(net.out.weight.grad().defined());
    backward(group.rank() == 0);
    ASSERT_TRUE(net.extra.weight.grad().defined());
    const Tensor mine = net.extra.weight.grad().clone();
    check_same_values(group, "gradient", {{"extra.weight", mine}});
    EXPECT_NE(mine.to_vector<double>(), std::vector<double>(64, 0.0));
    backward(false);
    EXPECT_FALSE(net.extra.weight.grad().defined());
  });
}

TEST(DdpStart, different_models_are_an_error_that_names_the_first_difference) {
  class Other : public nn::Module {
   public:
    explicit Other(int64_t out) : fc{this, "fc", {.in = 4, .out = out}} {}
    nn::Linear fc;
  };
  const auto errors = test::errors_of("local", 3, [](ProcessGroup& group) {
    Other net(group.rank() == 2 ? 5 : 3);
    const DistributedDataParallel ddp(net, group);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "ddp: parameters differ between ranks: number 0 is fc.weight [3, 4] f32 on rank "
              "0, but fc.weight [5, 4] f32 on rank 2; every rank must build the same model");
  }
}

TEST(DdpBuffers, follow_rank_0_before_each_forward_in_training) {
  run_local(2, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group);
    raw::fill_(net.counter, 5.0 + group.rank());
    const uint32_t version = net.counter.version();
    net.eval();
    net(zeros({2, 6}));
    EXPECT_EQ(net.counter.to_vector<double>()[0], 5 + group.rank());
    net.train();
    net(zeros({2, 6}));
    EXPECT_EQ(net.counter.to_vector<double>()[0], 5);
    EXPECT_EQ(net.counter.version() == version, group.rank() == 0);
    const uint32_t now = net.counter.version();
    net(zeros({2, 6}));
    EXPECT_EQ(net.counter.version(), now) << "an equal value needs no write";
  });
}

TEST(DdpReplicas, that_drifted_are_named) {
  const auto errors = test::errors_of("local", 3, [](ProcessGroup& group) {
    Net net;
    DistributedDataParallel ddp(net, group, {.check_every = 2});
    net(zeros({2, 6}));
    if (group.rank() == 1) net.hidden.bias.data<float>()[3] += 1e-6f;
    net(zeros({2, 6}));
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "ddp: hidden.bias of rank 1 is no longer equal to that of rank 0; the replicas "
              "have drifted apart");
  }
}

TEST(DdpHooks, halves_carry_the_gradients) {
  run_local(2, [](ProcessGroup& group) {
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      const auto gradient = [&](bool compress) {
        Net net;
        DistributedDataParallel ddp(net, group);
        if (compress) ddp.register_comm_hook(compress_hook(dtype));
        loss_of(net, rows_of(data_of(0, 6, 1), group.rank(), 2),
                rows_of(data_of(0, 3, 2), group.rank(), 2))
            .backward();
        return net.in.weight.grad().clone();
      };
      const Tensor exact = gradient(false), small = gradient(true);
      check_same_values(group, "gradient", {{"in.weight", small}});
      EXPECT_NE(bits(exact), bits(small));
      const auto a = exact.to_vector<double>(), b = small.to_vector<double>();
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 0.01);
    }
  });
}

TEST(BackwardEnd, callbacks_run_once_after_the_outermost_backward) {
  Tensor x = full({2}, 3);
  x.set_requires_grad();
  int inner = 0, ended = 0;
  x.register_post_accumulate_grad_hook([&](const Tensor&) {
    on_backward_end([&] { ended = 10 + inner; });
    const GradModeGuard recording(true);
    Tensor y = full({1}, 1);
    y.set_requires_grad();
    y.register_post_accumulate_grad_hook([&](const Tensor&) { on_backward_end([&] { ++inner; }); });
    sum(y * y).backward();
    EXPECT_EQ(inner, 0) << "a nested backward is not the end";
  });
  sum(x * x).backward();
  EXPECT_EQ(ended, 10);
  EXPECT_EQ(inner, 1);
  EXPECT_THROWS_WITH(on_backward_end([] {}), AutogradError, "this thread runs no backward");
}

}  // namespace
}  // namespace tarn::dist
