// optim_nonfinite_test.cpp - infinite and NaN parameters and gradients go through steps as in
// PyTorch.
#include <cmath>
#include <functional>
#include <memory>

#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/rmsprop.h"
#include "tarn/optim/sgd.h"

namespace tarn::optim {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>(const Tensor&, double weight_decay)>;

template <class O, class Options>
Make maker(Options options) {
  return [options](const Tensor& p, double weight_decay) {
    Options o = options;
    o.weight_decay = weight_decay;
    return std::make_unique<O>(std::vector<Tensor>{p}, o);
  };
}

std::vector<Make> makers() {
  return {maker<SGD>(SGDOptions{.lr = .1}),
          maker<SGD>(SGDOptions{.lr = .1, .momentum = .9}),
          maker<SGD>(SGDOptions{.lr = .1, .momentum = .9, .nesterov = true}),
          maker<Adam>(AdamOptions{.lr = .1}),
          maker<Adam>(AdamOptions{.lr = .1, .amsgrad = true}),
          maker<AdamW>(AdamWOptions{.lr = .1}),
          maker<RMSprop>(RMSpropOptions{.lr = .1}),
          maker<RMSprop>(RMSpropOptions{.lr = .1, .momentum = .9, .centered = true}),
          maker<Adagrad>(AdagradOptions{.lr = .1})};
}

TEST(NonFiniteTest, an_infinite_parameter_stays_infinite_without_weight_decay) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const std::vector<Make> all = makers();
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(i);
      // 19 elements: vectors of the loops and what is left of them.
      Tensor p = full({19}, INFINITY, {.dtype = dtype});
      p.narrow(0, 1, 1).fill_(-INFINITY);
      p.set_requires_grad();
      p.set_grad(ones({19}, {.dtype = dtype}));
      const auto optimizer = all[i](p, 0);
      for (int step = 0; step < 2; ++step) optimizer->step();
      const std::vector<double> got = p.to_vector<double>();
      for (size_t k = 0; k < got.size(); ++k) EXPECT_EQ(got[k], k == 1 ? -INFINITY : INFINITY) << k;
    }
  }
}

TEST(NonFiniteTest, a_nan_parameter_stays_nan_and_an_infinite_gradient_is_not_lost) {
  for (const Make& make : makers()) {
    Tensor p = tensor({NAN, 1});
    p.set_requires_grad();
    p.set_grad(tensor({1, INFINITY}));
    const auto optimizer = make(p, 0);
    for (int step = 0; step < 2; ++step) optimizer->step();
    for (double v : p.to_vector<double>()) EXPECT_FALSE(std::isfinite(v)) << v;
  }
}

// inf - inf under the root: PyTorch's parameter is NaN from then on.
TEST(NonFiniteTest, centered_rmsprop_keeps_a_nan_variance) {
  Tensor p = tensor({1});
  p.set_requires_grad();
  RMSprop rmsprop({p}, {.lr = .01, .centered = true});
  p.set_grad(tensor({INFINITY}));
  rmsprop.step();
  EXPECT_TRUE(std::isnan(p.item()));
  p.detach().fill_(1);
  p.set_grad(ones({1}));
  rmsprop.step();
  EXPECT_TRUE(std::isnan(p.item()));
}

TEST(NonFiniteTest, a_variance_that_rounds_below_zero_is_zero) {
  Tensor p = zeros({5});
  p.set_requires_grad();
  RMSprop rmsprop({p}, {.lr = 1, .alpha = 0, .eps = 1, .centered = true});
  const Tensor g = tensor({1.1, 1.2, 1.3, 1.7, 2.3});  // s = g^2 = mean^2, apart from rounding
  p.set_grad(g);
  rmsprop.step();
  const auto got = p.to_vector<double>(), want = g.to_vector<double>();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], -want[i], 2e-3);
}

}  // namespace
}  // namespace tarn::optim
