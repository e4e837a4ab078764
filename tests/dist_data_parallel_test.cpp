// dist_data_parallel_test.cpp - replicas on several devices compute what one computes.
#include <any>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/saved_tensor_hooks.h"
#include "tarn/core/random.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/dist/data_parallel.h"
#include "tarn/nn/linear.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/dist_tools.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::dist {
namespace {

class Net : public nn::Module {
 public:
  explicit Net(int64_t out = 3) : last{this, "last", {.in = 8, .out = out}} {
    std::mt19937 random(7);
    for (Tensor& p : parameters()) {
      for (int64_t i = 0; i < p.numel(); ++i) {
        p.data<float>()[i] = static_cast<float>(static_cast<int>(random() % 200) - 100) / 250.f;
      }
    }
  }
  Tensor forward(const Tensor& x) override {
    TARN_CHECK_AS(ValueError, x.size(0) != 4 || !fail, "a replica cannot");
    return last(relu(first(x)));
  }
  nn::Linear first{this, "first", {.in = 5, .out = 8}};
  nn::Linear last;
  bool fail = false;
};

Tensor input(int64_t rows, int64_t columns) {
  Tensor x = empty({rows, columns});
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(i % 17) / 9.f - 1;
  return x;
}

// The CPU several times over, and every other device of this build.
std::vector<std::vector<Device>> device_lists() {
  std::vector<std::vector<Device>> lists = {{kCPU}, {kCPU, kCPU}, {kCPU, kCPU, kCPU, kCPU}};
  std::vector<Device> others;
  for (Device d : available_devices()) {
    if (!d.is_cpu()) others.push_back(d);
  }
  if (others.size() > 1) lists.push_back(others);
  return lists;
}

TEST(DataParallel, trains_as_one_device_does) {
  const auto make = [] { return std::make_unique<Net>(); };
  for (const auto& devices : device_lists()) {
    for (int64_t rows : {1, 2, 9, 16}) {
      Net alone, master;
      master.to(devices[0]);
      DataParallel parallel(master, devices, make);
      optim::SGD one(alone.parameters(), {.lr = 0.1, .momentum = 0.9});
      optim::SGD many(master.parameters(), {.lr = 0.1, .momentum = 0.9});
      for (int step = 0; step < 5; ++step) {
        one.zero_grad();
        many.zero_grad();
        Tensor x = input(rows, 5), x2 = input(rows, 5);
        x.set_requires_grad();
        x2.set_requires_grad();
        const Tensor y = alone(x), z = parallel(x2);
        ASSERT_EQ(z.device(), devices[0]);
        mean(y * y).backward();
        mean(z * z).backward();
        const auto a = x.grad().to_vector<double>(), b = x2.grad().to_vector<double>();
        for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-6);
        one.step();
        many.step();
      }
      const auto p = alone.parameters(), q = master.parameters();
      for (size_t i = 0; i < p.size(); ++i) {
        const auto a = p[i].to_vector<double>(), b = q[i].to_vector<double>();
        for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], 1e-6) << devices.size();
      }
    }
  }
}

TEST(DataParallel, gradients_add_up_until_they_are_dropped) {
  const auto make = [] { return std::make_unique<Net>(); };
  Net net;
  DataParallel parallel(net, {kCPU, kCPU}, make);
  sum(parallel(input(6, 5))).backward();
  const auto once = net.first.weight.grad().to_vector<double>();
  sum(parallel(input(6, 5))).backward();
  const auto twice = net.first.weight.grad().to_vector<double>();
  for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], 2 * once[i], 1e-5);
  net.zero_grad();
  net.first.weight.set_requires_grad(false);
  sum(parallel(input(6, 5))).backward();
  EXPECT_FALSE(net.first.weight.grad().defined());
  EXPECT_TRUE(net.last.weight.grad().defined());
}

// The second forward leaves the replicas as the first one's backward needs them.
TEST(DataParallel, several_forwards_before_one_backward_add_up) {
  Net alone, master;
  DataParallel parallel(master, {kCPU, kCPU}, [] { return std::make_unique<Net>(); });
  const auto backward = [](auto& net) {
    const Tensor y = net(input(6, 5)), z = net(input(9, 5));
    (sum(y * y) + sum(z * z)).backward();
  };
  backward(alone);
  backward(parallel);
  const auto p = alone.parameters(), q = master.parameters();
  for (size_t i = 0; i < p.size(); ++i) {
    const auto a = p[i].grad().to_vector<double>(), b = q[i].grad().to_vector<double>();
    for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], 1e-4);
  }
}

TEST(DataParallel, a_backward_that_throws_leaves_nothing_behind) {
  Net net;
  DataParallel parallel(net, {kCPU, kCPU}, [] { return std::make_unique<Net>(); });
  const auto gradient = [&] {
    net.zero_grad();
    sum(parallel(input(6, 5))).backward();
    return net.last.weight.grad().to_vector<double>();
  };
  const auto wanted = gradient();
  Tensor x = input(6, 5);
  x.set_requires_grad();
  x.register_post_accumulate_grad_hook([](const Tensor&) { throw ValueError("enough"); });
  const Tensor y = sum(parallel(x));
  EXPECT_ANY_THROW(y.backward());
  EXPECT_EQ(gradient(), wanted);
}

// The second lies where the first one lay, if that was let go, and was written to as often.
TEST(DataParallel, replicas_get_the_values_of_new_memory) {
  class One : public nn::Module {
   public:
    Tensor forward(const Tensor& x) override { return x * weight; }
    nn::Parameter weight{this, "weight", ones({4})};
  };
  One net;
  net.to(DType::kF64).to(DType::kF32);
  DataParallel parallel(net, {kCPU, kCPU}, [] { return std::make_unique<One>(); });
  EXPECT_EQ(parallel(ones({2, 4})).to_vector<float>(), std::vector<float>(8, 1.f));
  net.to(DType::kF64);
  raw::fill_(net.weight, 3);
  net.to(DType::kF32);
  EXPECT_EQ(parallel(ones({2, 4})).to_vector<float>(), std::vector<float>(8, 3.f));
}

// One process, 4 devices, 9 rows.
TEST(DataParallel, several_inputs_are_cut_alike_and_losses_weighed_by_rows) {
  Net alone, master;
  DataParallel parallel(master, {kCPU, kCPU, kCPU, kCPU}, [] { return std::make_unique<Net>(); });
  const Tensor x = input(9, 5), y = input(9, 3);
  const auto loss = [](nn::Module& net, std::span<const Tensor> part) {
    EXPECT_EQ(part[0].size(0), part[1].size(0));
    const Tensor d = net(part[0]) - part[1];
    return mean(d * d);
  };
  const Tensor each = parallel.apply(loss, {x, y});
  EXPECT_EQ(parallel.rows(), (std::vector<int64_t>{3, 3, 3, 0}));
  EXPECT_EQ(each.sizes(), Shape({3})) << "scalars come as a vector";
  const std::vector<Tensor> all = {x, y};
  const Tensor whole = loss(alone, all);
  EXPECT_NEAR(mean(each).item(), whole.item(), 1e-6);

  // 9 rows as 5 and 4.
  DataParallel two(master, {kCPU, kCPU}, [] { return std::make_unique<Net>(); });
  whole.backward();
  const Tensor weighed = two.mean_of(loss, all);
  EXPECT_NEAR(weighed.item(), whole.item(), 1e-6);
  weighed.backward();
  const auto p = alone.parameters(), q = master.parameters();
  for (size_t i = 0; i < p.size(); ++i) {
    const auto a = p[i].grad().to_vector<double>(), b = q[i].grad().to_vector<double>();
    for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], 1e-6);
  }
  EXPECT_THROWS_WITH(
      two.mean_of([](nn::Module& net, std::span<const Tensor> part) { return net(part[0]); }, {x}),
      ShapeError, "mean_of needs a call that returns a scalar; got [5, 3]");
  EXPECT_THROWS_WITH(two.apply(loss, {x, input(8, 3)}), ShapeError,
                     "inputs must have rows to share, and equally many; got [9, 5] f32 cpu and [8");
  EXPECT_THROWS_WITH(two.apply(loss, {}), ValueError, "needs at least one input");
}

TEST(DataParallel, replicas_compute_in_the_callers_modes) {
  Net net;
  DataParallel parallel(net, {kCPU, kCPU}, [] { return std::make_unique<Net>(); });
  {
    const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
    EXPECT_EQ(parallel(input(6, 5)).dtype(), DType::kBF16);
  }
  {
    std::set<std::thread::id> threads;  // that kept something
    const SavedTensorHooks hooks(
        [&](const Tensor& x) {
          threads.insert(std::this_thread::get_id());
          return std::any(x);
        },
        [](const std::any& x) { return std::any_cast<Tensor>(x); });
    sum(parallel(input(6, 5))).backward();
    EXPECT_EQ(threads.size(), 2u);
  }
  std::atomic<int> right = 0;
  const auto count = [&](bool (*is_right)()) {
    right = 0;
    parallel.apply(
        [&](nn::Module& replica, std::span<const Tensor> part) {
          right += is_right();
          return replica(part[0]);
        },
        {input(6, 5)});
    return right.load();
  };
  {
    const AnomalyGuard anomaly;
    EXPECT_EQ(count(anomaly_enabled), 2);
  }
  {
    const InferenceModeGuard inference;
    EXPECT_EQ(count(inference_mode_enabled), 2);
  }
  const NoGradGuard no_grad;
  EXPECT_FALSE(parallel(input(6, 5)).requires_grad());
}

TEST(DataParallel, making_replicas_moves_no_random_numbers) {
  Net net;
  const PhiloxState before = default_generator().state();
  const DataParallel parallel(net, {kCPU, kCPU}, [] { return std::make_unique<Net>(); });
  EXPECT_EQ(default_generator().state().offset, before.offset);
}

TEST(DataParallel, shares_follow_speeds_and_the_results_stay) {
  Net alone, master;
  DataParallel parallel(
      master, {kCPU, kCPU}, [] { return std::make_unique<Net>(); }, {}, 2);
  const Tensor x = input(40, 5);
  const Tensor wanted = alone(x);
  for (int step = 0; step < 4; ++step) {  // one that does not count, two, and one with new shares
    const Tensor y = parallel.apply(
        [&](nn::Module& net, std::span<const Tensor> part) {
          // The second is slow.
          if (&net != &master) {
            std::this_thread::sleep_for(std::chrono::milliseconds(3 * part[0].size(0)));
          }
          return net(part[0]);
        },
        {x});
    const auto a = y.to_vector<double>(), b = wanted.to_vector<double>();
    for (size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], 1e-6);
    if (step == 0) {
      EXPECT_EQ(parallel.rows(), (std::vector<int64_t>{20, 20}));
    }
  }
  EXPECT_GT(parallel.rows()[0], parallel.rows()[1]);
}

TEST(DataParallel, rows_are_cut_by_share) {
  using Rows = std::vector<int64_t>;
  EXPECT_EQ(DataParallel::cut(9, 4, {}), (Rows{3, 3, 3, 0}));
  EXPECT_EQ(DataParallel::cut(8, 3, {}), (Rows{3, 3, 2}));
  EXPECT_EQ(DataParallel::cut(0, 2, {}), (Rows{0, 0}));
  EXPECT_EQ(DataParallel::cut(10, 2, {3, 1}), (Rows{8, 2}));
  EXPECT_EQ(DataParallel::cut(10, 3, {1, 0, 1}), (Rows{5, 0, 5}));
}

TEST(DataParallel, each_part_of_a_replica_has_the_mode_of_its_own) {
  Net net;
  Net* copy = nullptr;
  DataParallel parallel(net, {kCPU, kCPU}, [&] {
    auto made = std::make_unique<Net>();
    copy = made.get();
    return made;
  });
  net.last.eval();
  parallel(input(6, 5));
  EXPECT_TRUE(copy->training());
  EXPECT_TRUE(copy->first.training());
  EXPECT_FALSE(copy->last.training());
}

TEST(DataParallel, a_loss_may_outlive_the_object_that_made_it) {
  Net net;
  Tensor loss;
  {
    DataParallel parallel(net, {kCPU, kCPU}, [] { return std::make_unique<Net>(); });
    loss = sum(parallel(input(6, 5)));
  }
  loss.backward();
  EXPECT_TRUE(net.last.weight.grad().defined());
}

TEST(DataParallel, what_does_not_fit_is_said) {
  const auto make = [] { return std::make_unique<Net>(); };
  Net net;
  EXPECT_THROWS_WITH(DataParallel(net, {}, make), ValueError, "needs at least one device");
  EXPECT_THROWS_WITH(DataParallel(net, {kCPU, kCPU}, make, {1.0}), ValueError,
                     "one share per device; got 1 for 2");
  EXPECT_THROWS_WITH(DataParallel(net, {kCPU}, make, {-1.0}), ValueError,
                     "shares must not be negative; got -1");
  EXPECT_THROWS_WITH(DataParallel(net, {kCPU, kCPU}, [] { return std::make_unique<Net>(4); }),
                     ValueError, "a replica has last.weight [4, 8] f32 cpu where the module has");
  EXPECT_THROWS_WITH(
      DataParallel(
          net, {kCPU, kCPU},
          [] { return std::make_unique<nn::Linear>(nn::LinearOptions{.in = 1, .out = 1}); }),
      ValueError, "a replica has 2 tensors, the module 4");
  EXPECT_THROWS_WITH(DataParallel(net, {kCPU}, make, {}, -1), ValueError,
                     "rebalance_every must not be negative; got -1");
  DataParallel parallel(net, {kCPU, kCPU}, make);
  EXPECT_THROWS_WITH(parallel(scalar_tensor(1)), ShapeError, "inputs must have rows to share");
  net.fail = true;
  EXPECT_THROWS_WITH(parallel(input(7, 5)), ValueError, "a replica cannot");
}

}  // namespace
}  // namespace tarn::dist
