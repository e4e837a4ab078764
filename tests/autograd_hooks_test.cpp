// autograd_hooks_test.cpp - tensor, leaf and post-accumulate hooks, and retained gradients.
#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
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

TEST(Hooks, a_tensor_hook_sees_the_sum_of_all_uses_once) {
  Tensor x = leaf({2});
  const Tensor y = x * 1.0;
  std::vector<double> seen;
  y.register_hook([&](const Tensor& g) {
    seen.push_back(g.item());
    return Tensor();
  });
  (y * 3 + y * 4).backward();
  EXPECT_EQ(seen, (Values{7}));
}

TEST(Hooks, a_leaf_that_was_frozen_since_it_was_used_gets_no_gradient) {
  Tensor w = leaf({3}), v = leaf({4});
  int calls = 0;
  w.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
  const Tensor loss = w * v;
  w.set_requires_grad(false);
  loss.backward();
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(values(v.grad()), (Values{3}));
}

TEST(Hooks, they_run_in_order_and_replace_the_gradient) {
  Tensor x = leaf({2});
  const Tensor y = x * 5;
  y.register_hook([](const Tensor& g) { return g * 10; });
  y.register_hook([](const Tensor& g) { return g + 1; });
  (y * 2).backward();
  EXPECT_EQ(values(x.grad()), (Values{5 * (2 * 10 + 1)}));
}

TEST(Hooks, a_replacement_must_fit) {
  Tensor x = leaf({2});
  const Tensor y = x * 5;
  y.register_hook([](const Tensor&) { return ones({3}, {.dtype = DType::kF64}); });
  EXPECT_THROWS_WITH(y.backward(), ShapeError,
                     "hook: the gradient it returns must have the same sizes; got [3] f64 cpu for "
                     "[1] f64 cpu");
  const Tensor z = x * 5;
  z.register_hook([](const Tensor&) { return ones({1}); });
  EXPECT_THROWS_WITH(z.backward(), DTypeError,
                     "hook: the gradient it returns must have the same dtype; got [1] f32 cpu for "
                     "[1] f64 cpu");
}

TEST(Hooks, a_leaf_hook_runs_before_the_gradient_is_added) {
  Tensor x = leaf({2});
  int calls = 0;
  x.register_hook([&](const Tensor& g) {
    ++calls;
    EXPECT_FALSE(x.grad().defined());
    return g * 2;
  });
  (x * 3 + x).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(values(x.grad()), (Values{8}));
}

TEST(Hooks, post_accumulate_hooks_run_once_per_backward_after_the_sum) {
  Tensor x = leaf({2});
  std::vector<double> seen;
  x.register_post_accumulate_grad_hook([&](const Tensor& p) { seen.push_back(p.grad().item()); });
  x.register_post_accumulate_grad_hook([&](const Tensor&) { seen.push_back(-1); });
  (x * 3 + x * x).backward();
  (x * 1.0).backward();
  EXPECT_EQ(seen, (Values{7, -1, 8, -1}));
}

TEST(Hooks, post_accumulate_hooks_do_not_run_in_grad) {
  Tensor x = leaf({2});
  int calls = 0;
  x.register_post_accumulate_grad_hook([&](const Tensor&) { ++calls; });
  const Tensor y = x * 3;
  grad({&y, 1}, {&x, 1});
  EXPECT_EQ(calls, 0);
}

TEST(Hooks, leaves_are_served_as_early_as_possible) {
  // The gradient of w2 is complete before the layer below is walked.
  Tensor w1 = leaf({2}), w2 = leaf({3});
  std::vector<int> order;
  const Tensor h = w1 * w1;
  h.register_hook([&](const Tensor&) {
    order.push_back(1);
    return Tensor();
  });
  w2.register_post_accumulate_grad_hook([&](const Tensor&) { order.push_back(2); });
  w1.register_post_accumulate_grad_hook([&](const Tensor&) { order.push_back(0); });
  (h * w2).backward();
  EXPECT_EQ(order, (std::vector<int>{2, 1, 0}));
}

TEST(Hooks, of_leaves_that_are_ready_together_the_youngest_is_served_first) {
  std::vector<Tensor> leaves;
  std::vector<size_t> order, expected;
  for (size_t i = 0; i < 7; ++i) {
    leaves.push_back(leaf({1}));
    leaves[i].register_post_accumulate_grad_hook(
        [&order, i](const Tensor&) { order.push_back(i); });
    expected.insert(expected.begin(), i);
  }
  const Tensor all = cat(leaves, 0);  // uses them in this order, gives them their gradients at once
  for (int pass = 0; pass < 2; ++pass) {
    order.clear();
    all.sum().backward({}, true);
    EXPECT_EQ(order, expected);
  }
}

TEST(Hooks, they_can_be_removed_also_by_themselves) {
  Tensor x = leaf({2});
  int first = 0, second = 0, post = 0;
  int64_t id = 0;
  id = x.register_hook([&](const Tensor&) {
    ++first;
    x.remove_hook(id);
    return Tensor();
  });
  x.register_hook([&](const Tensor&) {
    ++second;
    return Tensor();
  });
  int64_t post_id = 0;
  post_id = x.register_post_accumulate_grad_hook([&](const Tensor& p) {
    ++post;
    p.remove_hook(post_id);
  });
  (x * 2).backward();
  (x * 2).backward();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
  EXPECT_EQ(post, 1);
}

TEST(Hooks, misuse_is_named) {
  const Tensor plain = ones({2});
  Tensor x = leaf({1});
  const Tensor y = x * 2;
  const auto hook = [](const Tensor&) { return Tensor(); };
  EXPECT_THROWS_WITH(plain.register_hook(hook), AutogradError,
                     "register_hook: the tensor does not require grad; got [2] f32 cpu");
  EXPECT_THROWS_WITH(y.register_post_accumulate_grad_hook([](const Tensor&) {}), AutogradError,
                     "register_post_accumulate_grad_hook: needs a leaf that requires grad");
  Tensor copy = plain;
  EXPECT_THROWS_WITH(copy.retain_grad(), AutogradError,
                     "retain_grad: the tensor does not require grad");
  EXPECT_THROWS_WITH(x.register_hook(nullptr), ValueError, "register_hook: a function is needed");
  EXPECT_THROWS_WITH(x.register_post_accumulate_grad_hook(nullptr), ValueError,
                     "register_post_accumulate_grad_hook: a function is needed");
}

TEST(Hooks, retain_grad_keeps_what_the_other_hooks_left) {
  Tensor x = leaf({2});
  Tensor y = x * x;
  y.retain_grad();
  y.register_hook([](const Tensor& g) { return g * 2; });
  (y * 3).backward({}, true);
  EXPECT_EQ(values(y.grad()), (Values{6}));
  EXPECT_EQ(values(x.grad()), (Values{24}));
  x.retain_grad();  // a leaf has its gradient anyway
  EXPECT_EQ(values(x.grad()), (Values{24}));
}

TEST(Hooks, retain_grad_follows_a_tensor_that_is_changed_in_place) {
  Tensor x = leaf({2}), h = x * 1;
  h.retain_grad();
  h.mul_(2);
  (h * 5).sum().backward();
  EXPECT_EQ(values(h.grad()), (Values{5}));
  EXPECT_EQ(values(x.grad()), (Values{10}));
}

TEST(Hooks, may_be_removed_after_a_change_in_place_and_from_a_frozen_leaf) {
  int calls = 0;
  const auto count = [&](const Tensor&) {
    ++calls;
    return Tensor();
  };
  Tensor x = leaf({2}), h = x * 1;
  const int64_t on_result = h.register_hook(count), on_leaf = x.register_hook(count);
  h.mul_(2);
  h.remove_hook(on_result);
  x.set_requires_grad(false);
  x.remove_hook(on_leaf);
  x.set_requires_grad();
  h.sum().backward();
  EXPECT_EQ(calls, 0);
}

TEST(Hooks, each_output_of_an_operation_has_its_own) {
  Tensor x = leaf({1, 2});
  const Tensor a = x.select(0, 0), b = x.select(0, 1);
  a.register_hook([](const Tensor& g) { return g * 100; });
  (a + b).backward();
  EXPECT_EQ(values(x.grad()), (Values{100, 1}));
}

}  // namespace
}  // namespace tarn
