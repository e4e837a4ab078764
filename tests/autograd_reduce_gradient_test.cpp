// autograd_reduce_gradient_test.cpp - reductions, softmax, norms and pooling: first and second
// derivatives against finite differences.
#include "numeric_tools.h"

namespace tarn {
namespace {

using namespace testing;  // NOLINT
using In = const std::vector<Tensor>&;

TEST(ReduceGradientTest, sums_products_and_moments) {
  const Tensor x = random_tensor({3, 4, 2}, 1);
  check_gradients("sum", [](In t) { return square(sum(t[0], {0, 2})); }, {x});
  check_gradients("sum keepdim", [](In t) { return square(sum(t[0], {-1}, true)); }, {x});
  check_gradients("mean", [](In t) { return square(mean(t[0], {1})); }, {x});
  check_gradients("prod", [](In t) { return prod(t[0], {1}); }, {x});
  check_gradients("prod of all", [](In t) { return prod(t[0]); }, {random_tensor({5}, 2)});
  check_gradients("var", [](In t) { return var(t[0], {0, 1}); }, {x});
  check_gradients("var of all", [](In t) { return var(t[0], {}, 0); }, {x});
  check_gradients("stddev", [](In t) { return stddev(t[0], {1}); }, {x});
  check_gradients("var_mean",
                  [](In t) {
                    const auto [v, m] = var_mean(t[0], {1});
                    return mul(v, square(m));
                  },
                  {x});
  check_gradients("logsumexp", [](In t) { return logsumexp(t[0], {1, 2}); }, {x});
  check_gradients("0-d", [](In t) { return mul(sum(t[0]), prod(t[0])); }, {random_tensor({}, 3)});
}

TEST(ReduceGradientTest, product_is_differentiable_at_zeros) {
  const Tensor one = tensor({2, 0, 3, -1}, {.dtype = DType::kF64});
  const Tensor two = tensor({2, 0, 0, 5, 1, 4, 0, 3}, {2, 4}, {.dtype = DType::kF64});
  check_gradients("one zero", [](In t) { return prod(t[0]); }, {one});
  check_gradients("rows", [](In t) { return prod(t[0], {1}); }, {two});
  check_gradients("columns", [](In t) { return prod(t[0], {0}); }, {two});
  check_gradients("cumprod", [](In t) { return cumprod(t[0], 1); }, {two});
  check_gradients("cumprod columns", [](In t) { return cumprod(t[0], 0); }, {two});
}

TEST(ReduceGradientTest, extremes_and_norms) {
  const Tensor x = random_tensor({4, 5}, 5);
  check_gradients("amax", [](In t) { return amax(t[0], {1}); }, {x});
  check_gradients("amin", [](In t) { return amin(t[0]); }, {x});
  check_gradients("max", [](In t) { return square(max(t[0], 0).first); }, {x});
  check_gradients("min", [](In t) { return square(min(t[0], 1, true).first); }, {x});
  for (double p : {1.0, 2.0, 3.0, 0.5, 1.5, -1.0}) {
    check_gradients("norm " + std::to_string(p), [p](In t) { return norm(t[0], p, {1}); }, {x});
  }
  for (double p : {0.0, double(INFINITY), -double(INFINITY)}) {
    check_gradients("norm " + std::to_string(p), [p](In t) { return norm(t[0], p, {0}); }, {x});
  }
}

TEST(ReduceGradientTest, ties_share_evenly_or_go_to_the_first) {
  Tensor x = tensor({1, 3, 3, 2}, {.dtype = DType::kF64});
  x.set_requires_grad();
  amax(x).backward();
  EXPECT_EQ(numbers(x.grad()), (Doubles{0, 0.5, 0.5, 0}));
  x.zero_grad();
  max(x, 0).first.backward();
  EXPECT_EQ(numbers(x.grad()), (Doubles{0, 1, 0, 0}));
  x.zero_grad();
  norm(x, INFINITY).backward();
  EXPECT_EQ(numbers(x.grad()), (Doubles{0, 0.5, 0.5, 0}));
}

TEST(ReduceGradientTest, norm_and_stddev_of_equal_elements_have_gradient_zero) {
  for (double p : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0}) {
    Tensor x = zeros({3}, {.dtype = DType::kF64});
    x.set_requires_grad();
    norm(x, p).backward();
    EXPECT_EQ(numbers(x.grad()), (Doubles{0, 0, 0})) << p;
  }
  Tensor x = full({3}, 2, {.dtype = DType::kF64});
  x.set_requires_grad();
  stddev(x).backward();
  EXPECT_EQ(numbers(x.grad()), (Doubles{0, 0, 0}));
}

TEST(ReduceGradientTest, scans_and_sorting) {
  const Tensor x = random_tensor({3, 4}, 6);
  check_gradients("cumsum", [](In t) { return square(cumsum(t[0], 1)); }, {x});
  check_gradients("cumsum 0", [](In t) { return square(cumsum(t[0], 0)); }, {x});
  check_gradients("cumprod", [](In t) { return cumprod(t[0], -1); }, {x});
  check_gradients("sort", [](In t) { return square(sort(t[0], 1).first); }, {x});
  check_gradients("topk", [](In t) { return square(topk(t[0], 2, 0).first); }, {x});
}

TEST(SoftmaxGradientTest, every_dimension) {
  const Tensor x = random_tensor({2, 3, 2, 2}, 7);
  const Tensor last = raw::contiguous(x, MemoryFormat::kChannelsLast);
  for (int64_t d : {0, 1, -1}) {
    check_gradients("softmax", [d](In t) { return softmax(t[0], d); }, {x});
    check_gradients("log_softmax", [d](In t) { return log_softmax(t[0], d); }, {x});
  }
  check_gradients("channels_last",
                  [](In t) { return softmax(contiguous(t[0], MemoryFormat::kChannelsLast), 1); },
                  {x});
}

Tensor eval_batch_norm(In t) {
  const Tensor mean = tensor({0.1, -0.2, 0.3}, {.dtype = DType::kF64});
  const Tensor var = tensor({0.5, 1.5, 1}, {.dtype = DType::kF64});
  return batch_norm(t[0], mean, var, t[1], t[2], false);
}

TEST(NormGradientTest, batch_norm) {
  const Tensor w = random_tensor({3}, 11), b = random_tensor({3}, 12);
  for (const Shape& sizes : {Shape{5, 3}, Shape{2, 3, 4}, Shape{2, 3, 2, 2}}) {
    const Tensor x = random_tensor(sizes, 13);
    check_gradients("training", [](In t) { return batch_norm(t[0], {}, {}, t[1], t[2], true); },
                    {x, w, b});
    check_gradients("evaluation", eval_batch_norm, {x, w, b});
    check_gradients("no affine", [](In t) { return batch_norm(t[0], {}, {}, {}, {}, true); }, {x});
  }
}

TEST(NormGradientTest, batch_norm_with_relu_and_residual) {
  const Tensor w = random_tensor({3}, 21), b = random_tensor({3}, 22);
  const Tensor x = random_tensor({2, 3, 2, 3}, 23), r = random_tensor({2, 3, 2, 3}, 24);
  for (const MemoryFormat format : {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast}) {
    const auto act = [format](In t, bool residual, bool relu) {
      return batch_norm_act(contiguous(t[0], format), residual ? t[3] : Tensor(), {}, {}, t[1],
                            t[2], {.training = true, .relu = relu});
    };
    check_gradients("relu", [&](In t) { return act(t, false, true); }, {x, w, b, r});
    check_gradients("residual", [&](In t) { return act(t, true, false); }, {x, w, b, r});
    check_gradients("both", [&](In t) { return act(t, true, true); }, {x, w, b, r});
  }
}

TEST(NormGradientTest, layer_group_and_instance_norm) {
  const Tensor x = random_tensor({2, 3, 4}, 31);
  const Tensor w = random_tensor({4}, 32), b = random_tensor({4}, 33);
  check_gradients("layer_norm", [](In t) { return layer_norm(t[0], {4}, t[1], t[2]); }, {x, w, b});
  check_gradients("layer_norm 2d", [](In t) { return layer_norm(t[0], {3, 4}); }, {x});
  const Tensor image = random_tensor({2, 4, 3}, 34);
  check_gradients("group_norm", [](In t) { return group_norm(t[0], 2, t[1], t[2]); },
                  {image, w, b});
  check_gradients("instance_norm", [](In t) { return instance_norm(t[0], {}, {}, t[1], t[2]); },
                  {image, w, b});
}

TEST(PoolGradientTest, every_pooling_in_both_layouts) {
  const Tensor x = random_tensor({2, 2, 5, 6}, 41);
  for (const MemoryFormat format : {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast}) {
    const auto check = [&](const char* what, auto f) {
      check_gradients(what, [&](In t) { return square(f(contiguous(t[0], format))); }, {x});
    };
    check("max", [](const Tensor& t) { return max_pool2d(t, 3, 2, 1); });
    check("max dilated", [](const Tensor& t) { return max_pool2d(t, 2, 1, 0, 2); });
    check("avg", [](const Tensor& t) { return avg_pool2d(t, 3, 2, 1); });
    check("avg without padding", [](const Tensor& t) {
      return avg_pool2d(t, {3, 2}, {2, 1}, 1, true, false);
    });
    check("adaptive avg", [](const Tensor& t) { return adaptive_avg_pool2d(t, {3, 4}); });
    check("adaptive max", [](const Tensor& t) { return adaptive_max_pool2d(t, {2, 4}); });
  }
}

}  // namespace
}  // namespace tarn
