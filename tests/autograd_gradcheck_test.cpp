// autograd_gradcheck_test.cpp - the checking tool finds what is wrong, and custom functions work.
#include <cmath>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/custom.h"
#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/gradcheck.h"
#include "tarn/core/factory.h"

namespace tarn {
namespace {

using List = std::vector<Tensor>;

Tensor leaf(std::initializer_list<double> values, const Shape& sizes) {
  Tensor x = tensor(values, sizes, {.dtype = DType::kF64});
  return x.set_requires_grad();
}

Tensor cube(const Tensor& x) {
  return custom_function(
      "cube", {x},
      [](CustomContext& ctx, const List& in) {
        ctx.save(in);
        return in[0] * in[0] * in[0];
      },
      [](const CustomContext& ctx, const List& grads) {
        return grads[0] * 3 * square(ctx.saved(0));
      });
}

// x * y with the gradient of y forgotten a factor in the element [1].
Tensor wrong_product(const Tensor& x, const Tensor& y) {
  return custom_function(
      "wrong_product", {x, y},
      [](CustomContext& ctx, const List& in) {
        ctx.save(in);
        return in[0] * in[1];
      },
      [](const CustomContext& ctx, const List& g) {
        const Tensor slip = tensor({1, 3}, {.dtype = DType::kF64});
        return List{g[0] * ctx.saved(1), g[0] * ctx.saved(0) * slip};
      });
}

TEST(CustomFunction, what_was_saved_is_for_backward) {
  const auto f = [](CustomContext& ctx, const List& in) {
    ctx.save(in);
    return ctx.saved(0);
  };
  const auto back = [](const CustomContext&, const List& grads) { return grads[0]; };
  EXPECT_THROWS_WITH(custom_function("early", {leaf({1}, {1})}, f, back), AutogradError,
                     "CustomContext: saved() is for backward");
}

TEST(Gradcheck, right_gradients_pass) {
  const List in = {leaf({0.5, -1, 2, 0.25}, {2, 2}), leaf({1, 3}, {2})};
  const auto f = [](const List& x) { return (x[0] * x[1]).exp().sum({0}); };
  EXPECT_TRUE(gradcheck(f, in));
  EXPECT_TRUE(gradgradcheck(f, in));
  EXPECT_TRUE(gradcheck(f, in, {.fast = true}));
  EXPECT_TRUE(gradgradcheck(f, in, {.fast = true}));
}

TEST(Gradcheck, a_wrong_gradient_is_named_with_place_and_values) {
  const List in = {leaf({2, 5}, {2}), leaf({1, 4}, {2})};
  const auto f = [](const List& x) { return wrong_product(x[0], x[1]); };
  EXPECT_THROWS_WITH(gradcheck(f, in), AutogradError,
                     "gradcheck: gradient of output 0 at index [1] with respect to input 1 at "
                     "index [1]: analytic 15, numeric 5");
  EXPECT_THROWS_WITH(gradcheck(f, in, {.fast = true}), AutogradError,
                     "gradcheck: derivative of output 0 with respect to input 1 along random "
                     "direction 0: analytic ");
}

TEST(Gradcheck, a_missing_gradient_counts_as_zero) {
  const List in = {leaf({2, 5}, {2})};
  EXPECT_THROWS_WITH(gradcheck([](const List& x) { return x[0].detach() * 2; }, in), AutogradError,
                     "analytic 0, numeric 2");
  EXPECT_TRUE(gradcheck([](const List& x) { return x[0].detach() * 0; }, in));
}

TEST(Gradcheck, a_second_derivative_that_is_missing_is_found) {
  const List in = {leaf({2, 5}, {2})};
  const auto f = [](const List& x) {
    return custom_function(
        "constant_slope", x,
        [](CustomContext& ctx, const List& y) {
          ctx.save(y);
          return y[0] * y[0];
        },
        [](const CustomContext& ctx, const List& g) { return g[0] * 2 * ctx.saved(0).detach(); });
  };
  EXPECT_TRUE(gradcheck(f, in));
  EXPECT_THROWS_WITH(gradgradcheck(f, in), AutogradError, "gradgradcheck: gradient of output 0");
}

TEST(Gradcheck, gradients_that_differ_from_run_to_run_are_found) {
  const List in = {leaf({2}, {1})};
  int calls = 0;
  const auto f = [&](const List& x) {
    return custom_function(
        "drift", x, [](CustomContext&, const List& y) { return y[0] * 1.0; },
        [&](const CustomContext&, const List& g) { return g[0] * (1 + 1e-9 * ++calls); });
  };
  EXPECT_THROWS_WITH(gradcheck(f, in), AutogradError, "two backward passes differ");
  EXPECT_TRUE(gradcheck(f, in, {.nondet_tol = 1e-8}));
}

TEST(Gradcheck, inputs_may_have_any_strides_and_keep_their_values) {
  Tensor wide = leaf({1, 2, 3, 4, 5, 6}, {2, 3}).detach();
  Tensor across = wide.t(), parts = wide.slice(1, 0, 3, 2), spread = wide.narrow(0, 0, 1);
  spread = spread.expand({2, 3});
  for (Tensor* x : {&across, &parts, &spread}) {
    x->set_requires_grad();
    EXPECT_TRUE(gradcheck([](const List& in) { return in[0] * in[0]; }, {*x}));
    EXPECT_TRUE(gradcheck([](const List& in) { return in[0] * in[0]; }, {*x}, {.fast = true}));
  }
  EXPECT_EQ(wide.to_vector<double>(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_FALSE(across.grad().defined());
}

TEST(Gradcheck, misuse_is_named) {
  const auto f = [](const List& x) { return x[0] * 2; };
  Tensor single = ones({2});
  single.set_requires_grad();
  EXPECT_THROWS_WITH(gradcheck(f, {single}), DTypeError,
                     "gradcheck: input 0 must be f64, or differences drown in rounding; got [2] "
                     "f32 cpu");
  EXPECT_THROWS_WITH(gradcheck(f, {ones({2})}), ValueError, "gradcheck: no input requires grad");
  EXPECT_THROWS_WITH(gradcheck(f, {Tensor()}), ValueError, "gradcheck: input 0 is undefined");
  const List in = {leaf({1}, {1})};
  EXPECT_THROWS_WITH(gradgradcheck([](const List& x) { return x[0].detach(); }, in), ValueError,
                     "gradgradcheck: no output requires grad");
  EXPECT_THROWS_WITH(gradgradcheck(f, in, {}, {ones({1}), ones({1})}), ValueError,
                     "gradgradcheck: one gradient per output; got 2 for 1");
}

TEST(Gradcheck, several_outputs_and_outputs_of_other_dtypes_are_fine) {
  const TensorFunction f = [](const List& x) { return List{x[0] * 2, x[0].exp(), gt(x[0], 0)}; };
  EXPECT_TRUE(gradcheck(f, {leaf({0.5, -1}, {2})}));
  EXPECT_TRUE(gradgradcheck(f, {leaf({0.5, -1}, {2})}));
}

TEST(Custom, forward_backward_and_double_backward) {
  Tensor x = leaf({2, -1}, {2});
  EXPECT_EQ(cube(x).to_vector<double>(), (std::vector<double>{8, -1}));
  EXPECT_EQ(cube(x).grad_fn_name(), "cube");
  EXPECT_TRUE(gradcheck([](const List& in) { return cube(in[0]); }, {x}));
  EXPECT_TRUE(gradgradcheck([](const List& in) { return cube(in[0]); }, {x}));
  EXPECT_FALSE(cube(x.detach()).requires_grad());
}

TEST(Custom, outputs_can_be_saved_and_there_may_be_several) {
  const TensorFunction f = [](const List& x) {
    return custom_function(
        "exp_and_square", x,
        [](CustomContext& ctx, const List& in) {
          const List out = {exp(in[0]), square(in[0])};
          ctx.save({out[0], in[0]});
          return out;
        },
        [](const CustomContext& ctx, const List& g) {
          return g[0] * ctx.saved(0) + g[1] * 2 * ctx.saved(1);
        });
  };
  Tensor x = leaf({0.5, -1}, {2});
  EXPECT_TRUE(gradcheck(f, {x}));
  EXPECT_TRUE(gradgradcheck(f, {x}));
  f({x})[1].sum().backward();  // the unused output's gradient arrives as zeros
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{1, -2}));
}

TEST(Custom, lambdas_capture_what_they_like_and_let_go_of_it) {
  Tensor x = leaf({1, 2}, {2});
  auto big = std::make_shared<std::vector<double>>(1000, 2.0);
  const std::weak_ptr<std::vector<double>> watch = big;
  const Tensor y = custom_function(
      "scale", {x}, [&](CustomContext&, const List& in) { return in[0] * (*big)[0]; },
      [big](const CustomContext&, const List& g) { return g[0] * (*big)[0]; });
  big.reset();
  EXPECT_FALSE(watch.expired());
  y.sum().backward();
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{2, 2}));
  EXPECT_THROWS_WITH(y.sum().backward(), AutogradError,
                     "the tensors saved for scale were already freed");
}

TEST(Custom, wants_tells_which_gradients_are_asked_for) {
  Tensor x = leaf({1}, {1});
  const Tensor constant = ones({1}, {.dtype = DType::kF64});
  std::vector<bool> wants;
  const Tensor y = custom_function(
      "first", {constant, x}, [](CustomContext&, const List& in) { return in[0] + in[1]; },
      [&](const CustomContext& ctx, const List& g) {
        wants = {ctx.wants(0), ctx.wants(1), ctx.wants(2)};
        return List{Tensor(), g[0]};
      });
  y.backward();
  EXPECT_EQ(wants, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(x.grad().item(), 1);
}

TEST(Custom, an_input_handed_through_becomes_a_new_tensor) {
  Tensor x = leaf({3}, {1});
  const Tensor y = custom_function(
      "identity", {x}, [](CustomContext&, const List& in) { return in[0]; },
      [](const CustomContext&, const List& g) { return g[0] * 7; });
  EXPECT_TRUE(x.is_leaf());
  EXPECT_EQ(y.grad_fn_name(), "identity");
  y.backward();
  EXPECT_EQ(x.grad().item(), 7);
}

TEST(Custom, wrong_backwards_are_named) {
  Tensor x = leaf({1, 2}, {2});
  const auto with_backward = [&](std::function<List(const List&)> backward, bool change = false) {
    Tensor in = x * 1.0;
    const Tensor y = custom_function(
        "mine", {in},
        [](CustomContext& ctx, const List& v) {
          ctx.save(v);
          return v[0] * 2;
        },
        [backward](const CustomContext& ctx, const List& g) {
          ctx.saved(0);
          return backward(g);
        });
    if (change) in.mul_(2);
    y.sum().backward();
  };
  EXPECT_THROWS_WITH(with_backward([](const List&) { return List{}; }), AutogradError,
                     "mine: backward must return one gradient per input; got 0 for 1");
  EXPECT_THROWS_WITH(with_backward([](const List& g) { return List{g[0].sum()}; }), AutogradError,
                     "mine: backward must return gradients like the inputs; got [] f64 cpu for "
                     "input 0, which is [2] f64");
  EXPECT_THROWS_WITH(with_backward([](const List& g) { return List{g[0].to(DType::kF32)}; }),
                     AutogradError, "got [2] f32 cpu for input 0, which is [2] f64");
  EXPECT_THROWS_WITH(with_backward([](const List& g) { return g; }, true), AutogradError,
                     "mine: a tensor needed for its gradient was changed in place");
  EXPECT_THROWS_WITH(custom_function(
                         "none", {x}, [](CustomContext&, const List&) { return Tensor(); },
                         [](const CustomContext&, const List& g) { return g; }),
                     ValueError, "none: forward returned an undefined tensor");
  EXPECT_THROWS_WITH(custom_function(
                         "none", {x}, [](CustomContext&, const List&) { return List{}; },
                         [](const CustomContext&, const List& g) { return g; }),
                     ValueError, "none: forward must return at least one tensor");
  const Tensor y = custom_function(
      "beyond", {x}, [](CustomContext&, const List& in) { return in[0] * 2; },
      [](const CustomContext& ctx, const List&) { return ctx.saved(0); });
  EXPECT_THROWS_WITH(y.sum().backward(), IndexError,
                     "beyond: saved tensor 0 was asked for; forward saved 0");
}

}  // namespace
}  // namespace tarn
