// autograd_saved_tensor_hooks_test.cpp - what is kept for backward, packed and unpacked by others;
// modes that go from thread to thread.
#include <cmath>
#include <thread>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/recompute.h"
#include "tarn/autograd/saved_tensor_hooks.h"
#include "tarn/autograd/thread_modes.h"
#include "tarn/core/error.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"

namespace tarn {
namespace {

struct Weights {
  Tensor w = (randn({6, 5}) * 0.5).detach().set_requires_grad();
  Tensor b = randn({6}).set_requires_grad();
  Tensor x = randn({4, 5});
  Tensor loss() const { return mean(square(tanh(linear(exp(x), w, b)))); }
  std::vector<double> gradients() {
    std::vector<double> all = w.grad().to_vector<double>();
    for (const double g : b.grad().to_vector<double>()) all.push_back(g);
    w.zero_grad();
    b.zero_grad();
    return all;
  }
};

/// Keep tensors as they are, and count them.
SavedTensorHooks counting_hooks(int& packed) {
  return SavedTensorHooks(
      [&packed](const Tensor& t) {
        ++packed;
        return std::any(t);
      },
      [](const std::any& t) { return std::any_cast<Tensor>(t); });
}

TEST(SavedTensorHooksTest, tensors_that_come_back_as_they_were_give_equal_bits) {
  Weights m;
  m.loss().backward();
  const auto plain = m.gradients();
  int packed = 0, unpacked = 0;
  Tensor loss;
  {
    const SavedTensorHooks hooks(
        [&](const Tensor& x) {
          EXPECT_FALSE(x.requires_grad());
          ++packed;
          return std::any(x.to_vector<float>());
        },
        [&](const std::any& kept) {
          ++unpacked;
          const auto& values = std::any_cast<const std::vector<float>&>(kept);
          return from_vector(values, values.size() == 24 ? Shape{4, 6} : Shape{4, 5});
        });
    loss = m.loss();
  }
  EXPECT_GE(packed, 3);  // exp(x), the result of tanh, that of linear
  EXPECT_EQ(unpacked, 0);
  loss.backward();
  EXPECT_GE(unpacked, packed);
  EXPECT_EQ(m.gradients(), plain);
}

TEST(SavedTensorHooksTest, a_lossy_pack_shows_in_the_gradients) {
  Tensor w = tensor({1, 2, 3}).set_requires_grad();
  Tensor y;
  {
    const SavedTensorHooks hooks([](const Tensor& x) { return std::any(x * 2); },
                                 [](const std::any& x) { return std::any_cast<Tensor>(x); });
    y = square(w * 1).sum();
  }
  y.backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (std::vector<float>{4, 8, 12}));
}

TEST(SavedTensorHooksTest, second_derivatives_go_through_unpacked_tensors) {
  Tensor w = tensor({0.5, -1}).set_requires_grad();
  const auto second = [&] {
    const std::vector<Tensor> y{pow(w * 1, 3).sum()}, leaves{w};
    const std::vector<Tensor> slope{grad(y, leaves, {}, {.create_graph = true})[0].sum()};
    return grad(slope, leaves)[0].to_vector<double>();
  };
  const auto plain = second();
  const SavedTensorHooks hooks([](const Tensor& x) { return std::any(x.clone()); },
                               [](const std::any& x) { return std::any_cast<Tensor>(x); });
  EXPECT_EQ(second(), plain);
}

TEST(SavedTensorHooksTest, another_tensor_is_refused) {
  Tensor w = ones({3}).set_requires_grad();
  const auto run = [&](Tensor (*give)()) {
    Tensor y;
    {
      const SavedTensorHooks hooks([](const Tensor&) { return std::any(); },
                                   [give](const std::any&) { return give(); });
      y = exp(w).sum();
    }
    y.backward();
  };
  const char* message = "exp: a saved-tensor hook must give back a tensor as it was: [3] f32 cpu";
  EXPECT_THROWS_WITH(run([] { return ones({4}); }), AutogradError, message);
  EXPECT_THROWS_WITH(run([] { return ones({3}, {.dtype = DType::kF64}); }), AutogradError, message);
  EXPECT_THROWS_WITH(run([] { return Tensor(); }), AutogradError, "got undefined");
}

TEST(SavedTensorHooksTest, inside_a_checkpoint_only_its_inputs_reach_the_hooks) {
  Tensor x = randn({7}).set_requires_grad();
  int packed = 0;
  const SavedTensorHooks hooks = counting_hooks(packed);
  const Tensor y = checkpoint([](const Tensor& in) { return exp(tanh(exp(in))); }, x * 1);
  EXPECT_EQ(packed, 1);
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

// Runs f in a thread that computes for this one.
template <class F>
void in_another_thread(F&& f) {
  const ThreadModes modes = thread_modes();
  std::thread([&] {
    const ThreadModesGuard guard(modes);
    f();
  }).join();
}

TEST(ThreadModesTest, a_thread_takes_over_all_modes_of_another_and_gives_them_back) {
  int packed = 0;
  const SavedTensorHooks hooks = counting_hooks(packed);
  const AutocastGuard autocast(DeviceType::kCPU, DType::kF16);
  const AnomalyGuard anomaly({.forward = true});
  const detail::ModulePathScope path("block.fc");
  const Tensor w = tensor({1, 2}).set_requires_grad();
  const auto check = [&] {
    EXPECT_EQ(autocast_state().low[0], DType::kF16);
    EXPECT_TRUE(autocast_enabled(DeviceType::kCPU));
    EXPECT_TRUE(anomaly_enabled());
    EXPECT_TRUE(exp(w).requires_grad());
    EXPECT_EQ(packed, 1);
    EXPECT_THROWS_WITH(sqrt(w - 2), AutogradError, "anomaly: sqrt in block.fc gave nan");
  };
  in_another_thread(check);
  packed = 0;
  check();
  const ThreadModes modes = thread_modes();
  std::thread([&] {
    { const ThreadModesGuard guard(modes); }
    EXPECT_FALSE(anomaly_enabled());
    EXPECT_FALSE(autocast_enabled(DeviceType::kCPU));
    EXPECT_EQ(detail::current_module_path(), "");
    EXPECT_EQ(thread_modes().saved_tensors, nullptr);
  }).join();
  const InferenceModeGuard inference;
  in_another_thread([&] {
    const GradModeGuard on(true);
    EXPECT_FALSE(grad_enabled());
  });
}

TEST(ThreadModesTest, the_tensors_of_a_checkpoint_stay_with_its_own_thread) {
  Tensor x = tensor({0.5, 2}).set_requires_grad();
  std::vector<bool> recomputed;
  const auto f = [&](const Tensor& in) {
    Tensor y;
    in_another_thread([&] {
      EXPECT_EQ(thread_modes().saved_tensors, nullptr);
      recomputed.push_back(is_recomputing());
      y = exp(in);
    });
    const ThreadModesGuard same(thread_modes());
    EXPECT_NE(thread_modes().saved_tensors, nullptr);
    return exp(y);
  };
  checkpoint(f, x).sum().backward();
  EXPECT_EQ(recomputed, (std::vector<bool>{false, true}));
  // d exp(exp(x)) = exp(exp(x)) exp(x)
  EXPECT_NEAR(x.grad().to_vector<double>()[0], std::exp(std::exp(0.5) + 0.5), 1e-4);
}

TEST(SaveOnCpuTest, tensors_of_the_cpu_stay_where_they_are) {
  Weights m;
  m.loss().backward();
  const auto plain = m.gradients();
  const SaveOnCpu offload;
  m.loss().backward();
  EXPECT_EQ(m.gradients(), plain);
}

}  // namespace
}  // namespace tarn
