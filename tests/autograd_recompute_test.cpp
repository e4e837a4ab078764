// autograd_recompute_test.cpp - activation checkpointing: equal gradients, memory, replay, misuse.
#include <thread>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/recompute.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {
namespace {

using Values = std::vector<double>;
Values values(const Tensor& x) {
  return x.to_vector<double>();
}

/// Two weights and a block that uses both; `block` may be checkpointed or not.
class Recompute : public ::testing::Test {
 protected:
  void SetUp() override {
    manual_seed(3);
    w1 = randn({8, 8}).set_requires_grad();
    w2 = randn({8, 8}).set_requires_grad();
    x = randn({4, 8});
  }
  Tensor block(const Tensor& in) const {
    return add(in, linear(gelu(linear(layer_norm(in, {8}), w1)), w2));
  }
  /// Gradients of both weights from run(), with equal random numbers.
  template <class F>
  std::vector<Values> gradients(F run) {
    w1.zero_grad();
    w2.zero_grad();
    manual_seed(9);
    sum(square(run())).backward();
    return {values(w1.grad()), values(w2.grad())};
  }
  Tensor w1, w2, x;
};

TEST_F(Recompute, gradients_are_bit_equal_to_those_without) {
  const auto plain = gradients([&] { return block(block(x)); });
  const auto again = gradients([&] {
    const auto f = [&](const Tensor& in) { return block(in); };
    return checkpoint(f, checkpoint(f, x));
  });
  EXPECT_EQ(plain, again);
}

TEST_F(Recompute, the_function_runs_twice_and_only_when_backward_needs_it) {
  int runs = 0;
  const Tensor y = checkpoint(
      [&](const Tensor& in) {
        ++runs;
        return block(in);
      },
      x);
  EXPECT_EQ(runs, 1);
  sum(y).backward();
  EXPECT_EQ(runs, 2);
  const NoGradGuard no_grad;
  checkpoint(
      [&](const Tensor& in) {
        ++runs;
        return block(in);
      },
      x);
  EXPECT_EQ(runs, 3);
}

TEST_F(Recompute, inputs_get_gradients_leaves_and_results_alike) {
  for (const bool leaf : {true, false}) {
    Tensor in = x.clone();
    in.set_requires_grad();
    const auto run = [&](bool again) {
      in.zero_grad();
      const Tensor start = leaf ? in : mul(in, 2);
      const auto f = [&](const Tensor& t) { return mul(t, block(t)); };
      sum(again ? checkpoint(f, start) : f(start)).backward();
      return values(in.grad());
    };
    EXPECT_EQ(run(false), run(true)) << "leaf: " << leaf;
  }
}

TEST_F(Recompute, several_inputs_and_outputs) {
  Tensor a = x.clone().set_requires_grad(), b = randn({4, 8}).set_requires_grad();
  const auto f = [](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{mul(in[0], in[1]), sigmoid(add(in[0], in[1]))};
  };
  const auto run = [&](bool again) {
    a.zero_grad();
    b.zero_grad();
    const std::vector<Tensor> in{a, b};
    const auto out = again ? checkpoint(f, in) : f(in);
    sum(mul(out[0], out[1])).backward();
    return std::vector<Values>{values(a.grad()), values(b.grad())};
  };
  EXPECT_EQ(run(false), run(true));
}

TEST_F(Recompute, calls_nest) {
  const auto plain = gradients([&] { return block(block(block(x))); });
  const auto f = [&](const Tensor& in) { return block(in); };
  const auto nested = gradients([&] {
    return checkpoint([&](const Tensor& in) { return checkpoint(f, block(checkpoint(f, in))); }, x);
  });
  EXPECT_EQ(plain, nested);
}

// Replicas of a model in threads use one generator.
TEST_F(Recompute, numbers_that_other_threads_draw_meanwhile_change_nothing) {
  std::vector<Tensor> masks;  // of the first run, and of the second
  const Tensor y = checkpoint(
      [&](const Tensor& in) {
        const Tensor first = dropout(block(in), 0.5, true);
        std::thread([] { rand({5}); }).join();
        const Tensor second = dropout(first, 0.5, true);
        masks.push_back(raw::ne(second.detach(), 0));
        return block(second);
      },
      x);
  const PhiloxState before = default_generator().state();
  sum(y).backward();
  ASSERT_EQ(masks.size(), 2u);
  EXPECT_EQ(values(masks[0]), values(masks[1]));
  EXPECT_EQ(default_generator().state().offset, before.offset + 2);  // rand's alone: 5 numbers
}

TEST_F(Recompute, dropout_draws_the_same_numbers_and_the_generator_goes_on) {
  const auto f = [&](const Tensor& in) { return dropout(block(in), 0.5, true); };
  PhiloxState after_plain, after_checkpoint;
  const auto plain = gradients([&] { return f(dropout(f(x), 0.5, true)); });
  after_plain = default_generator().state();
  const auto again = gradients([&] { return checkpoint(f, dropout(checkpoint(f, x), 0.5, true)); });
  after_checkpoint = default_generator().state();
  EXPECT_EQ(plain, again);
  EXPECT_EQ(after_plain.offset, after_checkpoint.offset);
}

TEST_F(Recompute, autocast_is_replayed) {
  const auto f = [&](const Tensor& in) { return block(in); };
  const auto plain = gradients([&] {
    const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
    return f(x);
  });
  const auto again = gradients([&] {
    const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
    return checkpoint(f, x);
  });
  EXPECT_EQ(plain, again);
}

TEST_F(Recompute, batch_norm_moves_its_statistics_once) {
  Tensor w = ones({8}).set_requires_grad();
  const auto run = [&](bool again) {
    const Tensor mean = zeros({8}), var = ones({8});
    const auto f = [&](const Tensor& in) { return square(batch_norm(in, mean, var, w, {}, true)); };
    sum(again ? checkpoint(f, x) : f(x)).backward();
    return std::vector<Values>{values(mean), values(var)};
  };
  EXPECT_EQ(run(false), run(true));
}

TEST_F(Recompute, tied_weights_and_hooks_work_as_without) {
  int fired = 0;
  w1.register_post_accumulate_grad_hook([&](const Tensor&) { ++fired; });
  const auto f = [&](const Tensor& in) { return block(in); };
  const auto plain = gradients([&] { return linear(f(x), w1); });
  EXPECT_EQ(fired, 1);
  const auto again = gradients([&] { return linear(checkpoint(f, x), w1); });
  EXPECT_EQ(fired, 2) << "one accumulation per backward";
  EXPECT_EQ(plain, again);
}

TEST_F(Recompute, gradients_of_gradients) {
  const auto run = [&](bool again) {
    Tensor in = x.clone().set_requires_grad();
    const auto f = [](const Tensor& t) { return sum(mul(tanh(t), exp(t))); };
    const Tensor y = again ? checkpoint(f, in) : f(in);
    const Tensor first =
        grad(std::vector<Tensor>{y}, std::vector<Tensor>{in}, {}, {.create_graph = true})[0];
    sum(square(first)).backward();
    return values(in.grad());
  };
  EXPECT_EQ(run(false), run(true));
}

TEST_F(Recompute, a_graph_that_is_kept_can_be_gone_through_twice) {
  const Tensor y = sum(checkpoint([&](const Tensor& in) { return block(in); }, x));
  y.backward({}, true);
  const Values once = values(w1.grad());
  y.backward();
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_FLOAT_EQ(static_cast<float>(values(w1.grad())[i]), static_cast<float>(2 * once[i]));
  }
}

TEST_F(Recompute, only_the_inputs_are_kept_between_the_runs) {
  const Tensor big = randn({256, 1024});
  const Tensor scale = ones({1024}).set_requires_grad();
  const auto deep = [&](Tensor t) {
    for (int i = 0; i < 10; ++i) t = sigmoid(mul(t, scale));
    return t;
  };
  const auto held = [&](bool again) {
    const int64_t before = memory_stats(Device()).allocated;
    const Tensor y = again ? checkpoint([&](const Tensor& t) { return deep(t); }, big) : deep(big);
    return memory_stats(Device()).allocated - before;
  };
  const int64_t one = big.numel() * 4;
  EXPECT_GE(held(false), 10 * one);
  EXPECT_LE(held(true), one + 65536) << "the result, and little more";
}

TEST_F(Recompute, an_input_changed_in_place_is_noticed) {
  const Tensor y = sum(checkpoint([&](const Tensor& in) { return block(in); }, x));
  x.mul_(Scalar(2));
  EXPECT_THROWS_WITH(y.backward(), AutogradError,
                     "checkpoint: a tensor needed for its gradient was changed in place");
}

TEST_F(Recompute, a_second_run_that_differs_is_noticed) {
  int64_t rows = 4;
  const Tensor y =
      sum(checkpoint([&](const Tensor& in) { return sum(block(in.narrow(0, 0, rows))); }, x));
  rows = 3;
  EXPECT_THROWS_WITH(y.backward(), AutogradError,
                     "checkpoint: the function must compute the same when it runs again; tensor 0");
  bool both = true;
  const Tensor z =
      sum(checkpoint([&](const Tensor& in) { return both ? block(block(in)) : block(in); }, x));
  both = false;
  EXPECT_THROWS_WITH(z.backward(), AutogradError, "tensors for backward and now keeps");
}

TEST_F(Recompute, weights_may_be_frozen_or_thawed_before_the_second_run) {
  const Tensor a = randn({4, 4}).set_requires_grad();
  Tensor first = randn({4, 4}), second = randn({4, 4});
  const auto f = [&](const Tensor& in) { return in.matmul(first).tanh().matmul(second).tanh(); };
  for (const bool frozen : {false, true}) {
    first.set_requires_grad(!frozen);
    second.set_requires_grad(!frozen);
    a.zero_grad();
    sum(f(a)).backward();
    const Values plain = values(a.grad());
    a.zero_grad();
    const Tensor y = sum(checkpoint(f, a));
    first.set_requires_grad(frozen);
    y.backward();
    EXPECT_EQ(values(a.grad()), plain) << frozen;
  }
}

TEST_F(Recompute, a_second_run_that_draws_otherwise_is_noticed) {
  bool training = true;
  const auto f = [&](const Tensor& in) { return square(dropout(in, 0.5, training)); };
  const Tensor y = sum(checkpoint(f, w1));
  training = false;
  EXPECT_THROWS_WITH(y.backward(), AutogradError, "it drew random numbers 1 times, and now 0");
}

TEST_F(Recompute, a_backward_inside_the_function_is_refused) {
  EXPECT_THROWS_WITH(checkpoint(
                         [&](const Tensor& in) {
                           const Tensor y = block(in);
                           sum(y).backward();
                           return y;
                         },
                         x),
                     AutogradError, "backward ran inside a checkpointed function");
}

}  // namespace
}  // namespace tarn
