// autograd_engine_test.cpp - the tape walked backwards: accumulation, lifetime, order, misuse.
#include <thread>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"

namespace tarn {
namespace {

using Values = std::vector<double>;

Tensor leaf(std::initializer_list<double> values) {
  Tensor x = tensor(values, {.dtype = DType::kF64});
  return x.set_requires_grad();
}
Values values(const Tensor& x) {
  return x.to_vector<double>();
}

TEST(Engine, a_second_backward_adds_to_the_gradient) {
  Tensor x = leaf({1, 2});
  (x * x).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{2, 4}));
  (x * 3).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{5, 7}));
  x.zero_grad();
  EXPECT_FALSE(x.grad().defined());
}

TEST(Engine, every_use_of_a_tensor_counts) {
  Tensor x = leaf({2});
  const Tensor y = x * x;      // shared
  (y * y + y + x).backward();  // x^4 + x^2 + x: 4*8 + 2*2 + 1 = 37
  EXPECT_EQ(values(x.grad()), (Values{37}));
}

TEST(Engine, gradients_that_arrive_expanded_can_be_summed) {
  // The first gradient to reach x is a stride-0 view that nobody else holds.
  Tensor x = leaf({1, 2, 3});
  const Tensor a = x.sum() * 2, b = (x * x).sum(), c = x.sum() * 3;
  (a + b + c).backward();
  EXPECT_EQ(values(x.grad()), (Values{7, 9, 11}));
  x.zero_grad();
  (x.sum() * 2).backward();
  EXPECT_EQ(values(x.grad()), (Values{2, 2, 2}));
  (x.sum() * 5).backward();
  EXPECT_EQ(values(x.grad()), (Values{7, 7, 7}));
}

TEST(Engine, the_gradient_a_leaf_keeps_is_its_own) {
  Tensor x = leaf({1, 2}), y = leaf({3, 4});
  const Tensor seed = ones_like(x.detach());
  (x + y).backward(seed);
  x.grad().mul_(10);
  EXPECT_EQ(values(y.grad()), (Values{1, 1}));
  EXPECT_EQ(values(seed), (Values{1, 1}));
  x.zero_grad();
  x.clone().backward(seed, false, true);  // create_graph as well
  x.clone().backward(seed);
  EXPECT_EQ(values(x.grad()), (Values{2, 2}));
  EXPECT_EQ(values(seed), (Values{1, 1}));
}

TEST(Engine, several_roots_share_one_pass) {
  Tensor x = leaf({3});
  const Tensor y = x * x, z = y * x;  // z is built on the other root
  const std::vector<Tensor> roots = {y, z};
  backward(roots);
  EXPECT_EQ(values(x.grad()), (Values{6 + 27}));
  const Tensor a = x * 2;
  const std::vector<Tensor> seeds = {tensor({10}, {.dtype = DType::kF64})};
  backward({&a, 1}, seeds);
  EXPECT_EQ(values(x.grad()), (Values{33 + 20}));
}

TEST(Engine, a_graph_is_freed_unless_retained) {
  Tensor x = leaf({2});
  const Tensor y = x * x;
  y.backward({}, true);
  y.backward();
  EXPECT_EQ(values(x.grad()), (Values{8}));
  EXPECT_THROWS_WITH(y.backward(), AutogradError,
                     "backward: the tensors saved for mul were already freed; call backward(..., "
                     "retain_graph=true)");
}

TEST(Engine, backward_frees_what_was_saved) {
  Tensor x = leaf({1, 2});
  Tensor y = x.exp();
  const Tensor loss = (y * y).sum();
  const Ref<Storage> kept = y.storage();
  y = Tensor();
  EXPECT_GT(kept->use_count(), 1);
  loss.backward();
  EXPECT_EQ(kept->use_count(), 1);
}

TEST(Engine, create_graph_gives_gradients_of_gradients) {
  Tensor x = leaf({2});
  const Tensor y = x * x * x;
  const Tensor first = grad({&y, 1}, {&x, 1}, {}, {.create_graph = true})[0];
  EXPECT_EQ(values(first), (Values{12}));  // 3x^2
  const Tensor second = grad({&first, 1}, {&x, 1}, {}, {.create_graph = true})[0];
  EXPECT_EQ(values(second), (Values{12}));  // 6x
  second.backward();
  EXPECT_EQ(values(x.grad()), (Values{6}));
}

TEST(Engine, grad_leaves_dot_grad_alone_and_may_take_inner_tensors) {
  Tensor x = leaf({3}), w = leaf({5});
  const Tensor y = x * x, z = y * w;
  const std::vector<Tensor> inputs = {y, x};
  const std::vector<Tensor> g = grad({&z, 1}, inputs);
  EXPECT_EQ(values(g[0]), (Values{5}));
  EXPECT_EQ(values(g[1]), (Values{30}));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(w.grad().defined());
  const std::vector<Tensor> self = grad({&y, 1}, {&y, 1});
  EXPECT_EQ(values(self[0]), (Values{1}));
}

TEST(Engine, grad_says_which_input_was_not_used) {
  Tensor x = leaf({1}), unused = leaf({2});
  const Tensor y = x * 2;
  const std::vector<Tensor> inputs = {x, unused};
  EXPECT_THROWS_WITH(grad({&y, 1}, inputs, {}, {.retain_graph = true}), AutogradError,
                     "grad: input 1 was not used to compute the outputs");
  const std::vector<Tensor> g = grad({&y, 1}, inputs, {}, {.allow_unused = true});
  EXPECT_TRUE(g[0].defined());
  EXPECT_FALSE(g[1].defined());
  const Tensor plain = ones({1});
  EXPECT_THROWS_WITH(grad({&y, 1}, {&plain, 1}), AutogradError,
                     "grad: input 0 does not require grad; got [1] f32 cpu");
}

TEST(Engine, grad_computes_only_what_leads_to_its_inputs) {
  Tensor x = leaf({1}), other = leaf({2});
  int calls = 0;
  const Tensor branch = other * 3;
  branch.register_hook([&](const Tensor&) {
    ++calls;
    return Tensor();
  });
  const Tensor expensive = branch.exp();
  const Tensor y = x * 2 + expensive;
  grad({&y, 1}, {&x, 1});
  EXPECT_EQ(calls, 0);
  // What was pruned is still there for another pass.
  expensive.backward();
  EXPECT_EQ(calls, 1);
}

TEST(Engine, roots_are_checked) {
  Tensor x = leaf({1, 2});
  const Tensor y = x * 2;
  EXPECT_THROWS_WITH(y.backward(), ShapeError,
                     "backward: a gradient must be given unless the tensor has one element; got "
                     "[2] f64 cpu; reduce it with sum() or mean() first");
  EXPECT_THROWS_WITH(y.backward(ones({3}, {.dtype = DType::kF64})), ShapeError,
                     "backward: a gradient must have the tensor's sizes");
  EXPECT_THROWS_WITH(ones({1}).backward(), AutogradError,
                     "backward: the tensor does not require grad and has no history; got [1] f32");
  const std::vector<Tensor> two = {y, y};
  EXPECT_THROWS_WITH(backward({&y, 1}, two), ValueError,
                     "backward: one gradient per tensor; got 2 for 1");
  EXPECT_THROWS_WITH(grad({&y, 1}, {&x, 1}, two), ValueError,
                     "grad: one gradient per output; got 2 for 1");
  y.backward(ones_like(x.detach()));  // and the engine still works
  EXPECT_EQ(values(x.grad()), (Values{2, 2}));
}

TEST(Engine, a_gradient_of_another_dtype_is_converted) {
  Tensor x = leaf({1, 2});
  (x * 3).backward(ones({2}, {.dtype = DType::kI64}));
  x.backward(ones({2}));
  EXPECT_EQ(values(x.grad()), (Values{4, 4}));
  EXPECT_EQ(x.grad().dtype(), DType::kF64);
}

// Recording a gradient may make an accumulator, whose mutex may be that of the leaf.
TEST(Engine, a_root_gradient_that_is_a_leaf_may_share_its_mutex) {
  Tensor x = leaf({1, 2});
  std::vector<Tensor> leaves;
  do {
    leaves.push_back(leaf({3, 4}));
  } while (&detail::leaf_mutex(leaves.back().impl().get()) != &detail::leaf_mutex(x.impl().get()));
  (x * 2).backward(leaves.back(), false, true);
  x.grad().sum().backward();
  EXPECT_EQ(values(leaves.back().grad()), (Values{2, 2}));
}

TEST(GradMode, nothing_is_recorded_under_no_grad) {
  Tensor x = leaf({1});
  {
    const NoGradGuard no_grad;
    EXPECT_FALSE((x * 2).requires_grad());
    const GradModeGuard again(true);
    EXPECT_TRUE((x * 2).requires_grad());
  }
  EXPECT_TRUE((x * 2).requires_grad());
}

TEST(GradMode, inference_mode_cannot_be_left_from_inside) {
  Tensor x = leaf({1});
  {
    const InferenceModeGuard inference;
    EXPECT_TRUE(inference_mode_enabled());
    const GradModeGuard again(true);
    EXPECT_FALSE(grad_enabled());
    EXPECT_FALSE((x * 2).requires_grad());
  }
  EXPECT_FALSE(inference_mode_enabled());
  EXPECT_TRUE((x * 2).requires_grad());
}

TEST(GradMode, it_belongs_to_the_thread) {
  const NoGradGuard no_grad;
  bool elsewhere = false;
  std::thread([&] { elsewhere = grad_enabled(); }).join();
  EXPECT_TRUE(elsewhere);
}

TEST(Tensor, detach_shares_data_and_cuts_history) {
  Tensor x = leaf({1, 2});
  const Tensor y = x * 2;
  Tensor cut = y.detach();
  EXPECT_FALSE(cut.requires_grad());
  EXPECT_TRUE(cut.is_leaf());
  EXPECT_EQ(cut.data(), y.data());
  (cut * x).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{2, 4}));  // cut counts as a constant
}

TEST(Tensor, only_floating_leaves_can_require_grad) {
  Tensor x = leaf({1});
  Tensor y = x * 2;
  EXPECT_THROWS_WITH(y.set_requires_grad(false), AutogradError,
                     "set_requires_grad: only leaves can be switched; got the result of mul; use "
                     "detach()");
  Tensor labels = zeros({2}, {.dtype = DType::kI64});
  EXPECT_THROWS_WITH(labels.set_requires_grad(), DTypeError,
                     "set_requires_grad: only floating tensors can require grad; got [2] i64 cpu");
  EXPECT_EQ(y.grad_fn_name(), "mul");
  EXPECT_EQ(x.grad_fn_name(), "");
  x.set_requires_grad(false);
  EXPECT_FALSE((x * 2).requires_grad());
}

TEST(Tensor, set_grad_checks_what_it_gets) {
  Tensor x = leaf({1, 2});
  EXPECT_THROWS_WITH(x.set_grad(ones({3}, {.dtype = DType::kF64})), ShapeError,
                     "set_grad: the gradient must have the tensor's sizes and dtype; got [3] f64 "
                     "cpu for [2] f64 cpu");
  x.set_grad(ones({2}, {.dtype = DType::kF64}));
  (x * 2).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{3, 3}));
}

TEST(Engine, a_chain_of_a_hundred_thousand_operations_goes_back_and_away) {
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 100000; ++i) y = y + 1.0;
  y.backward();
  EXPECT_EQ(values(x.grad()), (Values{1}));
  Tensor z = x;
  for (int i = 0; i < 100000; ++i) z = z * x;  // saved tensors hold the history too
  z = Tensor();                                // never walked
}

TEST(Engine, two_threads_walk_two_graphs) {
  std::vector<Values> results(2);
  const auto work = [&](int id) {
    Tensor w = leaf({1.0 + id, 2.0});
    for (int i = 0; i < 300; ++i) {
      w.zero_grad();
      Tensor y = w;
      for (int k = 0; k < 10; ++k) y = (y * w).tanh();
      y.sum().backward();
    }
    results[static_cast<size_t>(id)] = values(w.grad());
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  const auto alone = results;
  work(0);
  work(1);
  EXPECT_EQ(results, alone);
}

TEST(Engine, a_pass_inside_a_pass_may_walk_the_same_nodes) {
  Tensor x = leaf({3});
  const Tensor y = x * x;
  bool inner = false;
  y.register_hook([&](const Tensor&) {
    if (!inner) {
      inner = true;
      y.backward({}, true);  // adds dy/dx = 6 of its own
    }
    return Tensor();
  });
  (y * y).backward();  // d(x^4)/dx = 108
  EXPECT_EQ(values(x.grad()), (Values{114}));
}

TEST(Engine, a_hook_that_never_stops_calling_backward_is_refused) {
  Tensor x = leaf({1});
  const Tensor y = x * 2;
  y.register_hook([&](const Tensor&) {
    y.backward({}, true);
    return Tensor();
  });
  EXPECT_THROWS_WITH((y * y).backward(), AutogradError, "passes run inside one another");
}

TEST(Engine, passes_in_several_threads_may_share_nodes_and_leaves) {
  Tensor x = leaf({2, 3});
  const Tensor shared = x * x * x;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) shared.backward(ones({2}), true);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(values(x.grad()), (Values{800 * 12, 800 * 27}));
}

TEST(Engine, another_graph_may_be_walked_from_a_hook) {
  Tensor x = leaf({2}), z = leaf({5});
  const Tensor y = x * x;
  y.register_hook([&](const Tensor&) {
    const GradModeGuard recording(true);
    (z * z).backward();
    return Tensor();
  });
  y.backward();
  EXPECT_EQ(values(x.grad()), (Values{4}));
  EXPECT_EQ(values(z.grad()), (Values{10}));
}

TEST(Engine, an_exception_in_a_hook_leaves_the_engine_usable) {
  Tensor x = leaf({2});
  const Tensor y = x * x;
  const int64_t id =
      y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("from the hook"); });
  const Tensor z = y * 3;
  EXPECT_THROW(z.backward({}, true), std::runtime_error);
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(grad_enabled());
  y.remove_hook(id);
  z.backward();
  EXPECT_EQ(values(x.grad()), (Values{12}));
}

TEST(Engine, sums_are_the_same_bits_every_time) {
  std::vector<float> start(64);
  for (size_t i = 0; i < start.size(); ++i) start[i] = 0.37f * static_cast<float>(i % 11) - 1.3f;
  std::vector<float> first;
  for (int run = 0; run < 5; ++run) {
    Tensor x = from_vector(start, {8, 8});
    x.set_requires_grad();
    Tensor y = x;
    for (int i = 0; i < 6; ++i) y = matmul(y, x).tanh() + y * x.exp();
    y.sum().backward();
    const std::vector<float> bits = x.grad().to_vector<float>();
    if (run == 0) first = bits;
    EXPECT_EQ(bits, first);
  }
}

TEST(Anomaly, it_names_the_operation_that_first_gave_a_nan) {
  const AnomalyGuard anomaly;
  Tensor x = leaf({4, 0});
  const Tensor y = (x * 0.0).sqrt();  // d sqrt at 0: inf
  EXPECT_THROWS_WITH(y.sum().backward(), AutogradError,
                     "anomaly: the backward of sqrt gave inf in the gradient of its input 0, first "
                     "at index [0] of [2] f64 cpu");
}

TEST(Anomaly, looking_forward_it_names_the_operation_that_gave_the_first_nan) {
  Tensor x = leaf({1, -1, 4, -4}).view({2, 2}).detach().set_requires_grad();
  const auto loss = [&] { return (x.sqrt() * 2.0).sum(); };
  const char* message = "anomaly: sqrt gave nan, first at index [0, 1] of [2, 2] f64 cpu";
  {
    const AnomalyGuard anomaly({.forward = true});
    EXPECT_THROWS_WITH(loss(), AutogradError, message);
    {
      const AnomalyGuard inner;  // does not switch it off
      EXPECT_THROWS_WITH(loss(), AutogradError, message);
    }
    EXPECT_EQ(values((x.abs() * 0.0).log().sum().detach()).size(), 1u);  // -inf: masks hold it
  }
  const AnomalyGuard off({.forward = true, .enabled = false});
  EXPECT_FALSE(anomaly_enabled());
  EXPECT_NO_THROW(loss());
}

TEST(Anomaly, finite_gradients_pass) {
  Tensor x = leaf({4, 1});
  {
    const AnomalyGuard anomaly;
    x.sqrt().sum().backward();
  }
  EXPECT_FALSE(anomaly_enabled());
  EXPECT_EQ(values(x.grad()), (Values{0.25, 0.5}));
}

}  // namespace
}  // namespace tarn
