// autograd_random_test.cpp - random factories, recorded fills, dropout and its gradient.
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"

namespace tarn {
namespace {

using Values = std::vector<double>;
Values values(const Tensor& x) {
  return x.to_vector<double>();
}

template <class E>
void expect_error(const std::function<void()>& f, const std::string& text) {
  try {
    f();
    FAIL() << "no error; expected: " << text;
  } catch (const E& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

TEST(RandomOpsTest, factories_follow_options_and_generator) {
  Generator a(1), b(1);
  const Tensor x = rand({3, 4}, {.dtype = DType::kF64}, &a);
  EXPECT_EQ(x.sizes(), (Shape{3, 4}));
  EXPECT_EQ(x.dtype(), DType::kF64);
  EXPECT_EQ(values(x), values(rand({3, 4}, {.dtype = DType::kF64}, &b)));
  EXPECT_EQ(values(randn({5}, {}, &a)), values(randn({5}, {}, &b)));
  EXPECT_EQ(values(randint(0, 100, {5}, {.dtype = DType::kI32}, &a)),
            values(randint(0, 100, {5}, {.dtype = DType::kI32}, &b)));
  EXPECT_EQ(values(randperm(9, {.dtype = DType::kI64}, &a)),
            values(randperm(9, {.dtype = DType::kI64}, &b)));
  EXPECT_EQ(values(multinomial(ones({9}), 4, true, &a)),
            values(multinomial(ones({9}), 4, true, &b)));
  const Tensor like = empty({2, 3, 4, 5}, {.format = MemoryFormat::kChannelsLast});
  // The layout follows `like`, the numbers do not depend on it.
  const Tensor same = randn_like(like, &a);
  EXPECT_TRUE(same.is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_EQ(values(same), values(randn({2, 3, 4, 5}, {}, &b)));
  EXPECT_EQ(values(rand_like(x, &a)), values(rand_like(x, &b)));
  EXPECT_EQ(values(randint_like(x, 0, 9, &a)), values(randint_like(x, 0, 9, &b)));
  expect_error<DTypeError>([] { rand({2}, {.dtype = DType::kI64}); }, "dtype must be floating");
}

TEST(RandomOpsTest, the_default_generator_is_seeded_by_manual_seed) {
  manual_seed(5);
  const Values first = values(randn({8}));
  EXPECT_NE(values(randn({8})), first);
  manual_seed(5);
  EXPECT_EQ(values(randn({8})), first);
}

TEST(RandomOpsTest, bernoulli_takes_a_probability_per_element) {
  Generator g(2);
  const Tensor p = tensor({0, 1, 0.25}, {3}).expand({10000, 3});
  double counts[3] = {};
  const Values v = values(bernoulli(p, &g));
  for (size_t i = 0; i < v.size(); ++i) counts[i % 3] += v[i];
  EXPECT_EQ(counts[0], 0);
  EXPECT_EQ(counts[1], 10000);
  EXPECT_NEAR(counts[2], 2500, 200);
}

TEST(RandomOpsTest, fills_in_place_stop_the_gradient) {
  Tensor x = ones({3});
  x.set_requires_grad();
  Tensor y = mul(x, 2);
  normal_(y);
  mul(y, 3).backward(ones({3}));
  EXPECT_EQ(values(x.grad()), (Values{0, 0, 0}));
  expect_error<AutogradError>([&] { uniform_(x); }, "uniform_: a leaf that requires grad");
  const NoGradGuard no_grad;
  uniform_(x, 5, 6);
  EXPECT_GE(values(x)[0], 5);
  bernoulli_(x, 1);
  EXPECT_EQ(values(x), (Values{1, 1, 1}));
}

TEST(DropoutTest, the_gradient_uses_the_mask_of_the_forward) {
  for (MemoryFormat format : {MemoryFormat::kContiguous, MemoryFormat::kChannelsLast}) {
    Generator g(3);
    Tensor x = ones({4, 8, 5, 5}, {.format = format});
    x.set_requires_grad();
    const Tensor y = dropout(x, 0.3, true, &g);
    EXPECT_TRUE(y.is_contiguous(format));
    // The gradient arrives in either layout.
    y.backward(ones({4, 8, 5, 5}));
    EXPECT_EQ(values(x.grad()), values(y));
    int kept = 0;
    for (double v : values(y)) kept += v != 0;
    EXPECT_NEAR(kept / 800.0, 0.7, 0.06);
  }
}

TEST(DropoutTest, is_linear_so_its_second_derivative_is_its_mask_again) {
  Generator g(4);
  Tensor x = rand({50}, {.dtype = DType::kF64}, &g);
  x.set_requires_grad();
  const Tensor y = dropout(x, 0.5, true, &g);
  const Tensor outputs[] = {mul(y, y)}, inputs[] = {x};
  const Tensor seeds[] = {ones({50}, {.dtype = DType::kF64})};
  const Tensor first = grad(outputs, inputs, seeds, {.create_graph = true})[0];
  first.backward(seeds[0]);
  const Values v = values(y), second = values(x.grad());
  // y = 2 m x, y^2 = 4 m x^2: second derivative 8 m.
  for (size_t i = 0; i < v.size(); ++i) EXPECT_EQ(second[i], v[i] != 0 ? 8 : 0);
}

TEST(DropoutTest, edges_of_p_and_evaluation) {
  const Tensor x = tensor({1, NAN, 3});
  EXPECT_TRUE(dropout(x, 0.5, false).is_same(x));
  EXPECT_TRUE(dropout(x, 0).is_same(x));
  EXPECT_EQ(values(dropout(x, 1)), (Values{0, 0, 0}));
  EXPECT_EQ(dropout(zeros({0, 3})).sizes(), (Shape{0, 3}));
  expect_error<ValueError>([&] { dropout(x, 1.5); }, "dropout: p must be in [0, 1]; got 1.5");
  expect_error<DTypeError>([&] { dropout(arange(3), 0.5); }, "dropout: dtype must be floating");
  expect_error<ShapeError>([&] { dropout2d(x, 0.5); }, "dropout2d: x must be [N, C, ...]");
}

TEST(DropoutTest, dropout2d_drops_whole_channels) {
  Generator g(6);
  Tensor x = ones({10, 20, 3, 3});
  x.set_requires_grad();
  const Tensor y = dropout2d(x, 0.4, true, &g);
  y.backward(ones_like(y));
  EXPECT_EQ(values(x.grad()), values(y));
  const Values v = values(y);
  int kept = 0;
  for (size_t c = 0; c < 200; ++c) {
    for (size_t i = 1; i < 9; ++i) ASSERT_EQ(v[9 * c + i], v[9 * c]);
    kept += v[9 * c] != 0;
  }
  EXPECT_NEAR(kept / 200.0, 0.6, 0.12);
}

}  // namespace
}  // namespace tarn
