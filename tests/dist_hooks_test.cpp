// dist_hooks_test.cpp - lossy averages: exact where they should be, equal on all ranks, learning.
#include <cmath>
#include <random>

#include "tarn/autograd/functions.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/ddp.h"
#include "tarn/dist/hooks.h"
#include "tarn/nn/linear.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

Tensor random_of(const Shape& sizes, unsigned seed) {
  std::mt19937 random(seed);
  Tensor x = empty(sizes);
  for (int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 1500.f;
  }
  return x;
}

class Net : public nn::Module {
 public:
  Net() {
    unsigned seed = 1;
    for (Tensor& p : parameters()) raw::copy_(p, raw::mul(random_of(p.sizes(), seed++), 0.5));
  }
  Tensor forward(const Tensor& x) override { return out(tanh(in(x))); }
  nn::Linear in{this, "in", {.in = 20, .out = 30}};
  nn::Linear out{this, "out", {.in = 30, .out = 2}};
};

// Two rows per rank: the averaged gradient of a layer has rank 4 at most.
Tensor loss_of(Net& net, int rank) {
  const Tensor d = net(random_of({2, 20}, 10 + static_cast<unsigned>(rank))) -
                   random_of({2, 2}, 20 + static_cast<unsigned>(rank));
  return mean(d * d);
}

std::vector<double> gradient(ProcessGroup& group, const CommHook& hook) {
  Net net;
  DistributedDataParallel ddp(net, group);
  if (hook) ddp.register_comm_hook(hook);
  loss_of(net, group.rank()).backward();
  std::vector<double> all;
  for (const auto& [name, p] : net.named_parameters()) {
    const auto values = p.grad().to_vector<double>();
    all.insert(all.end(), values.begin(), values.end());
    check_same_values(group, name, {{name, p.grad()}});
  }
  return all;
}

TEST(CommHooks, are_exact_where_nothing_has_to_be_left_out) {
  run_local(2, [](ProcessGroup& group) {
    const auto exact = gradient(group, nullptr);
    for (const CommHook& hook :
         {top_k_hook(1), powersgd_hook({.rank = 4}), compress_hook(DType::kBF16)}) {
      const auto got = gradient(group, hook);
      for (size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(got[i], exact[i], 2e-3);
    }
    const auto top = gradient(group, top_k_hook(1)), power = gradient(group, powersgd_hook({}));
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_NEAR(top[i], exact[i], 1e-7);
      ASSERT_NEAR(power[i], exact[i], 1e-5);
    }
  });
}

TEST(CommHooks, leave_out_what_they_should) {
  run_local(2, [](ProcessGroup& group) {
    const auto some = gradient(group, top_k_hook(0.1));
    const auto zeros = std::count(some.begin(), some.end(), 0.0);
    EXPECT_GE(zeros, static_cast<int64_t>(some.size() * 8 / 10));
    EXPECT_LT(zeros, static_cast<int64_t>(some.size()));
  });
}

// Also after the first backward, when parameters come into other buckets.
TEST(CommHooks, send_later_what_they_left_out) {
  run_local(2, [](ProcessGroup& group) {
    const auto exact = gradient(group, nullptr);
    Net net;
    DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.001, .first_bucket_mb = 0.001});
    ddp.register_comm_hook(top_k_hook(0.1));
    std::vector<double> sum(exact.size());
    for (int step = 0; step < 25; ++step) {
      net.zero_grad();
      (loss_of(net, group.rank()) * (step == 0 ? 1.0 : 0.0)).backward();
      size_t at = 0;
      for (const Tensor& p : net.parameters()) {
        for (double v : p.grad().to_vector<double>()) sum[at++] += v;
      }
    }
    for (size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(sum[i], exact[i], 1e-6) << i;
  });
}

TEST(CommHooks, learn_what_the_exact_average_learns) {
  run_local(2, [](ProcessGroup& group) {
    const auto last_loss = [&](const CommHook& hook) {
      Net net;
      DistributedDataParallel ddp(net, group, {.bucket_cap_mb = 0.001, .first_bucket_mb = 0.001});
      if (hook) ddp.register_comm_hook(hook);
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      double loss = 0;
      for (int step = 0; step < 300; ++step) {
        sgd.zero_grad();
        const Tensor l = loss_of(net, group.rank());
        l.backward();
        sgd.step();
        const Tensor all = l.detach().clone();
        group.all_reduce(all, ReduceOp::kAvg)->wait();
        loss = all.item();
      }
      ddp.check_replicas();
      return loss;
    };
    const double exact = last_loss(nullptr);
    EXPECT_LT(exact, 1e-3);
    EXPECT_LT(last_loss(top_k_hook(0.1)), 5e-3);
    EXPECT_LT(last_loss(powersgd_hook({.rank = 1})), 5e-3);
  });
}

TEST(CommHooks, tell_of_an_overflow_once) {
  run_local(2, [](ProcessGroup& group) {
    for (const CommHook& hook : {top_k_hook(0.3), powersgd_hook({.rank = 2})}) {
      Net net;
      DistributedDataParallel ddp(net, group);
      ddp.register_comm_hook(hook);
      for (const bool overflows : {false, true, false, false}) {
        net.zero_grad();
        const double scale = overflows && group.rank() == 1 ? INFINITY : 1;
        (loss_of(net, group.rank()) * scale).backward();
        int64_t finite = 0, all = 0;
        for (const Tensor& p : net.parameters()) {
          for (double v : p.grad().to_vector<double>()) finite += std::isfinite(v);
          all += p.numel();
        }
        EXPECT_EQ(finite == all, !overflows) << finite << " of " << all;
        const auto values = net.in.weight.grad().to_vector<double>();
        EXPECT_LT(std::count(values.begin(), values.end(), 0.0), net.in.weight.numel());
      }
    }
  });
}

TEST(CommHooks, options_are_checked) {
  EXPECT_THROWS_WITH(top_k_hook(0), ValueError, "the share must be in (0, 1]; got 0");
  EXPECT_THROWS_WITH(top_k_hook(1.5), ValueError, "the share must be in (0, 1]; got 1.5");
  EXPECT_THROWS_WITH(powersgd_hook({.rank = 0}), ValueError, "the rank must be at least 1; got 0");
  const auto group = make_local_groups(1)[0];
  GradBucket bucket{zeros({4}, {.dtype = DType::kF64}), 0, true, {}};
  EXPECT_THROWS_WITH(top_k_hook(0.5)(*group, bucket), DTypeError,
                     "top_k_hook: gradients must be f32; got f64");
  EXPECT_THROWS_WITH(powersgd_hook()(*group, bucket), DTypeError,
                     "powersgd_hook: gradients must be f32; got f64");
}

}  // namespace
}  // namespace tarn::dist
