// nn_functional_call_test.cpp - calls with other tensors in place of a module's own, and loading
// what fits.
#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/models/mlp.h"
#include "tarn/nn/norm.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::nn {
namespace {

using Names = std::vector<std::string>;

class Net : public Module {
 public:
  Linear fc{this, "fc", {.in = 2, .out = 3}};
  BatchNorm1d bn{this, "bn", {.features = 3}};
  Tensor forward(const Tensor& x) override { return bn(fc(x)); }
};

/// What is left of `net` after the call: the very tensors it had.
void expect_untouched(Module& net, const std::vector<Tensor>& parameters) {
  const std::vector<Tensor> now = net.parameters();
  ASSERT_EQ(now.size(), parameters.size());
  for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(now[i].is_same(parameters[i])) << i;
}

TEST(FunctionalCall, computes_with_the_tensors_given_and_puts_the_own_ones_back) {
  manual_seed(3);
  models::Mlp net({.sizes = {2, 4, 1}}), other({.sizes = {2, 4, 1}});
  const std::vector<Tensor> own = net.parameters();
  const Tensor x = randn({5, 2});
  EXPECT_TRUE(equal(functional_call(net, other.named_parameters(), x), other(x)));
  expect_untouched(net, own);
  // One of them only; a hook runs, and sees it.
  const Tensor bias = full({1}, 100);
  const Tensor want = net(x) - net.layers[1].bias + 100;
  int calls = 0;
  net.layers[1].register_forward_hook([&](Module& m, const Tensor&, const Tensor&) {
    ++calls;
    EXPECT_TRUE(m.named_parameters()["bias"].is_same(bias));
    return Tensor();
  });
  EXPECT_TRUE(allclose(functional_call(net, {{"layers.1.bias", bias}}, x), want, 1e-5, 1e-4));
  EXPECT_EQ(calls, 1);
  expect_untouched(net, own);
}

TEST(FunctionalCall, an_inner_step_is_differentiable_as_a_whole) {
  Linear net({.in = 1, .out = 1, .bias = false});
  net.weight.detach().fill_(1);
  const Tensor x = tensor({2}, {1, 1}), y = tensor({1}, {1, 1}), x2 = tensor({1}, {1, 1});
  const auto loss = [&](const TensorDict& at, const Tensor& in, const Tensor& target) {
    return square(functional_call(net, at, in) - target).sum();
  };
  const Tensor w = net.weight;
  const Tensor first = loss(net.named_parameters(), x, y);
  const std::vector<Tensor> g =
      grad(std::vector{first}, std::vector{w}, {}, {.create_graph = true});
  const Tensor fast = w - 0.1 * g[0];
  EXPECT_NEAR(fast.item(), 0.6, 1e-6);  // 1 - 0.1 * 2 * 2 * (2 - 1)
  loss({{"weight", fast}}, x2, zeros({1, 1})).backward();
  // d(fast^2)/dw = 2 * 0.6 * (1 - 0.1 * 2 * 2^2)
  EXPECT_NEAR(net.weight.grad().item(), 0.24, 1e-6);
}

TEST(FunctionalCall, buffers_given_are_those_that_change) {
  Net net;
  const Tensor mean = zeros({3}), x = ones({4, 2}) * 3 + randn({4, 2});
  functional_call(net, {{"bn.running_mean", mean}}, x);
  EXPECT_NE(amax(abs(mean)).item(), 0);
  EXPECT_EQ(amax(abs(net.bn.running_mean)).item(), 0);
  EXPECT_NE(net.bn.running_var.to_vector<float>(), (std::vector<float>{1, 1, 1}));  // its own
}

TEST(FunctionalCall, tied_parameters_change_together) {
  class Tied : public Module {
   public:
    Tied() { b.weight.tie(a.weight); }
    Linear a{this, "a", {.in = 2, .out = 2, .bias = false}};
    Linear b{this, "b", {.in = 2, .out = 2, .bias = false}};
    Tensor forward(const Tensor& x) override { return b(a(x)); }
  } tied;
  const Tensor x = tensor({1, 2}, {1, 2}), twice = eye(2, 2) * 2;
  EXPECT_EQ(functional_call(tied, {{"a.weight", twice}}, x).to_vector<int>(),
            (std::vector<int>{4, 8}));
  EXPECT_TRUE(tied.a.weight.is_same(tied.b.weight));
  EXPECT_MESSAGE(ValueError,
                 functional_call(tied, {{"a.weight", twice}, {"b.weight", eye(2, 2)}}, x),
                 "'b.weight' is tied to another name, which was given another tensor");
}

TEST(FunctionalCall, leaves_the_module_as_it_was_after_an_exception) {
  Net net, other;
  const std::vector<Tensor> own = net.parameters();
  EXPECT_MESSAGE(Error, functional_call(net, other.named_parameters(), ones({4, 5})), "linear");
  expect_untouched(net, own);
  EXPECT_MESSAGE(ValueError, functional_call(net, {{"fc.weigth", ones({3, 2})}}, ones({4, 2})),
                 "functional_call: Net has no parameter or buffer 'fc.weigth'");
  EXPECT_MESSAGE(
      ShapeError,
      functional_call(net, {{"fc.bias", ones({3})}, {"fc.weight", ones({2, 3})}}, ones({4, 2})),
      "'fc.weight' is [3, 2], given [2, 3]");
  EXPECT_MESSAGE(ValueError, functional_call(net, {{"fc.bias", Tensor()}}, ones({4, 2})),
                 "'fc.bias' is undefined");
  expect_untouched(net, own);
}

TEST(FunctionalCall, a_scope_serves_other_functions) {
  Net net;
  const Tensor weight = ones({3, 2});
  {
    const Module::SwapScope swapped(net, {{"fc.weight", weight}});
    EXPECT_TRUE(net.fc.weight.is_same(weight));
  }
  EXPECT_FALSE(net.fc.weight.is_same(weight));
  EXPECT_TRUE(net.fc.weight.requires_grad());
}

TEST(LoadStateDict, skips_what_has_other_sizes_if_asked_to) {
  models::Mlp trained({.sizes = {2, 4, 10}}), net({.sizes = {2, 4, 3}});
  const TensorDict weights = trained.state_dict();
  const std::vector<float> head = net.layers[1].weight.to_vector<float>();
  EXPECT_MESSAGE(ShapeError, net.load_state_dict(weights), "layers.1.weight is [3, 4], given");
  const LoadReport report = net.load_state_dict(weights, {.skip_other_sizes = true});
  EXPECT_EQ(report.skipped, (Names{"layers.1.weight", "layers.1.bias"}));
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_TRUE(equal(net.layers[0].weight, trained.layers[0].weight));
  EXPECT_EQ(net.layers[1].weight.to_vector<float>(), head);
  // Names are as strict as ever.
  EXPECT_MESSAGE(ValueError, net.load_state_dict({{"x", ones({1})}}, {.skip_other_sizes = true}),
                 "missing");
  EXPECT_EQ(net.load_state_dict({{"x", ones({1})}}, {.strict = false, .skip_other_sizes = true})
                .unexpected,
            Names{"x"});
}

}  // namespace
}  // namespace tarn::nn
