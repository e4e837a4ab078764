// optim_optimizer_test.cpp - steps against PyTorch's numbers, groups, state, absent gradients.
#include <cmath>
#include <functional>
#include <sstream>

#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/parallel.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/optimizer.h"
#include "tarn/optim/rmsprop.h"
#include "tarn/optim/sgd.h"

namespace tarn::optim {
namespace {

using Values = std::vector<double>;

Tensor leaf(std::initializer_list<double> values, DType dtype = DType::kF32) {
  Tensor p = tensor(values, {.dtype = dtype});
  p.set_requires_grad();
  return p;
}
Tensor leaf(const Tensor& values) {
  Tensor p = values.clone();
  p.set_requires_grad();
  return p;
}
Values values(const Tensor& x) {
  return x.to_vector<double>();
}
void expect_near(const Tensor& x, const Values& want, double tolerance = 1e-6) {
  const Values got = values(x);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << "at " << i;
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

/// p = [1, -2], loss = sum(p^2 * [.5, 1]), so grad = p * [1, 2]; compared after each of three steps
/// with what PyTorch 1.13.1 computes.
void expect_three_steps(const std::function<std::unique_ptr<Optimizer>(Tensor)>& make,
                        const std::vector<Values>& want) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    Tensor p = leaf({1, -2}, dtype);
    const auto optimizer = make(p);
    for (const Values& after : want) {
      p.set_grad(raw::mul(p.detach(), tensor({1, 2}, {.dtype = dtype})));
      optimizer->step();
      expect_near(p, after, 2e-6);
    }
  }
}

TEST(OptimizerTest, sgd_follows_pytorch) {
  const auto make = [](SGDOptions o) {
    return [o](const Tensor& p) { return std::make_unique<SGD>(std::vector<Tensor>{p}, o); };
  };
  expect_three_steps(make({.lr = .1, .momentum = .9, .weight_decay = .1}),
                     {{.89, -1.58}, {.693100, -.870200}, {.439649, -.048638}});
  expect_three_steps(make({.lr = .1, .momentum = .9, .nesterov = true}),
                     {{.81, -1.24}, {.575100, -.444800}, {.327321, .216704}});
  expect_three_steps(make({.lr = .1, .momentum = .9, .dampening = .5}),
                     {{.9, -1.6}, {.765, -1.08}, {.605250, -.504}});
  // Plain: p *= 1 - lr * [1, 2].
  expect_three_steps(make({.lr = .1}), {{.9, -1.6}, {.81, -1.28}, {.729, -1.024}});
}

TEST(OptimizerTest, adam_and_adamw_follow_pytorch) {
  expect_three_steps(
      [](const Tensor& p) {
        return std::make_unique<Adam>(std::vector<Tensor>{p},
                                      AdamOptions{.lr = .1, .weight_decay = .1});
      },
      {{.9, -1.9}, {.800412, -1.800166}, {.701586, -1.700623}});
  expect_three_steps(
      [](const Tensor& p) {
        return std::make_unique<AdamW>(std::vector<Tensor>{p}, AdamWOptions{.lr = .1});
      },
      {{.899, -1.898}, {.798519, -1.796273}, {.698911, -1.694945}});
}

TEST(OptimizerTest, amsgrad_keeps_the_largest_second_moment) {
  // Gradients 10 then 0.1: v2 < v1, so the root keeps v1 = 0.001 * 100.
  Tensor p = leaf({0}, DType::kF64);
  AdamOptions o{.lr = .1, .amsgrad = true};
  Adam adam({p}, o);
  p.set_grad(tensor({10}, {.dtype = DType::kF64}));
  adam.step();
  p.set_grad(tensor({0.0}, {.dtype = DType::kF64}));
  adam.step();
  const double v = .001 * 100, m = .9 * 1;
  const double want = -.1 * 10 / (10 + 1e-8) -
                      .1 / (1 - .81) * m / (std::sqrt(v) / std::sqrt(1 - .999 * .999) + 1e-8);
  EXPECT_NEAR(p.to_vector<double>()[0], want, 1e-12);
}

TEST(OptimizerTest, rmsprop_and_adagrad_follow_their_formulas) {
  Tensor p = leaf({1}, DType::kF64), q = leaf({1}, DType::kF64), r = leaf({1}, DType::kF64);
  RMSprop plain({p}), full({r}, {.lr = .1, .momentum = .5, .centered = true});
  Adagrad adagrad({q});
  double s = 0, a = 0, b = 0, want_p = 1, want_q = 1, want_r = 1, sum = 0, s2 = 0;
  for (double g : {2.0, -1.0, 0.5}) {
    for (Tensor* x : {&p, &q, &r}) x->set_grad(tensor({g}, {.dtype = DType::kF64}));
    plain.step();
    full.step();
    adagrad.step();
    s = .99 * s + .01 * g * g;
    want_p -= .01 * g / (std::sqrt(s) + 1e-8);
    sum += g * g;
    want_q -= .01 * g / (std::sqrt(sum) + 1e-10);
    s2 = .99 * s2 + .01 * g * g;
    a = .99 * a + .01 * g;
    b = .5 * b + g / (std::sqrt(s2 - a * a) + 1e-8);
    want_r -= .1 * b;
  }
  EXPECT_NEAR(values(p)[0], want_p, 1e-12);
  EXPECT_NEAR(values(q)[0], want_q, 1e-12);
  EXPECT_NEAR(values(r)[0], want_r, 1e-12);
}

TEST(OptimizerTest, maximize_climbs_and_grad_scale_scales) {
  Tensor p = leaf({1}), q = leaf({1});
  SGD up({p}, {.lr = .5, .maximize = true}), scaled({q}, {.lr = .5});
  p.set_grad(ones({1}));
  q.set_grad(ones({1}));
  up.step();
  scaled.step(.25);
  EXPECT_EQ(values(p), (Values{1.5}));
  EXPECT_EQ(values(q), (Values{.875}));
}

TEST(OptimizerTest, an_absent_gradient_leaves_everything_and_zero_does_not) {
  Tensor p = leaf({1}), q = leaf({1});
  SGD sgd({p, q}, {.lr = .1, .momentum = .9, .weight_decay = .5});
  p.set_grad(ones({1}));
  q.set_grad(ones({1}));
  sgd.step();
  const Values before = values(q);
  const Values buffer = values(sgd.state_dict()["state.1.momentum_buffer"]);
  p.set_grad(zeros({1}));
  q.zero_grad();
  EXPECT_FALSE(q.grad().defined());
  sgd.step();
  EXPECT_EQ(values(q), before);
  EXPECT_EQ(values(sgd.state_dict()["state.1.momentum_buffer"]), buffer);
  EXPECT_NE(values(p), before);  // momentum and decay still act
}

TEST(OptimizerTest, a_late_gradient_starts_its_own_count) {
  Tensor p = leaf({1}, DType::kF64), q = leaf({1}, DType::kF64);
  Adam adam({p, q}, {.lr = .1});
  const auto step = [&](bool both) {
    p.set_grad(ones({1}, {.dtype = DType::kF64}));
    if (both) q.set_grad(ones({1}, {.dtype = DType::kF64}));
    adam.step();
    adam.zero_grad();
  };
  step(false);
  step(true);
  // Adam's first step is lr * sign(g) whenever it comes.
  EXPECT_NEAR(values(q)[0], .9, 1e-8);
  step(true);
  const TensorDict state = adam.state_dict();
  EXPECT_EQ(state["state.0.step"].item(), 3);
  EXPECT_EQ(state["state.1.step"].item(), 2);
}

TEST(OptimizerTest, groups_have_their_own_options) {
  Tensor p = leaf({1}), q = leaf({1});
  SGD sgd({{{p}, {.lr = .1}}, {{q}, {.lr = 1, .momentum = .5}}});
  EXPECT_EQ(sgd.num_groups(), 2u);
  p.set_grad(ones({1}));
  q.set_grad(ones({1}));
  sgd.step();
  expect_near(p, {.9});
  expect_near(q, {0});
  sgd.set_lr(1, .5);
  EXPECT_EQ(sgd.lr(0), .1);
  EXPECT_EQ(sgd.lr(1), .5);
  EXPECT_EQ(sgd.initial_lr(1), .5);  // no Scheduler has been made
  sgd.set_lr(.2);
  EXPECT_EQ(sgd.lr(0), .2);
  EXPECT_EQ(sgd.params().size(), 2u);
}

TEST(OptimizerTest, options_changed_between_steps_get_their_state) {
  Tensor p = leaf({1});
  SGD sgd({p}, {.lr = 1});
  p.set_grad(ones({1}));
  sgd.step();
  sgd.options().momentum = .5;
  sgd.step();  // the buffer begins with the gradient
  expect_near(p, {-1});
  sgd.step();
  expect_near(p, {-2.5});
  sgd.options().momentum = 0;
  sgd.step();
  expect_near(p, {-3.5});
  Adam adam({p});
  adam.step();
  adam.options().amsgrad = true;
  adam.step();
  EXPECT_NEAR(adam.state_dict()["state.0.max_exp_avg_sq"].item(), 1 - .999 * .999, 1e-6);
}

TEST(OptimizerTest, half_parameters_have_f32_masters) {
  // REPORTS C14: f16 weight 1, gradient 1e-4, rate 1e-3: master 0.9990001, stored 0.99902344.
  Tensor p = leaf({1}, DType::kF16);
  Adam adam({p}, {.lr = 1e-3});
  p.set_grad(tensor({1e-4}, {.dtype = DType::kF16}));
  adam.step();
  EXPECT_NEAR(adam.state_dict()["state.0.master_param"].item(), 0.9990001, 2e-7);
  EXPECT_EQ(values(p)[0], 0.9990234375);
  EXPECT_EQ(adam.state_dict()["state.0.exp_avg_sq"].dtype(), DType::kF32);
}

TEST(OptimizerTest, weights_written_between_steps_go_to_their_master) {
  Tensor p = leaf({1, 1}, DType::kF16);
  SGD sgd({p}, {.lr = 1e-4});
  p.set_grad(ones({2}, {.dtype = DType::kF16}));
  sgd.step();
  EXPECT_EQ(values(p), (Values{1, 1}));  // 0.9999 in f16
  p.detach().copy_(tensor({1, 2}));
  sgd.step();
  expect_near(sgd.state_dict()["state.0.master_param"], {.9998, 1.9999});
}

TEST(OptimizerTest, many_sizes_give_the_same_bits_at_any_thread_count) {
  const int before = num_threads();
  Values want;
  for (int threads : {1, 2, 3, 4}) {
    set_num_threads(threads);
    Generator g(2);
    std::vector<Tensor> params;
    for (int64_t n : {1, 7, 0, 40000, 3, 100000, 17}) params.push_back(leaf(randn({n}, {}, &g)));
    AdamW adamw(params);
    SGD sgd(params, {.lr = .01, .momentum = .9});
    Values got;
    for (int step = 0; step < 3; ++step) {
      for (Tensor& p : params) p.set_grad(randn(p.sizes(), {}, &g));
      adamw.step();
      sgd.step();
    }
    for (const Tensor& p : params) {
      for (double v : values(p)) got.push_back(v);
    }
    if (threads == 1) want = got;
    ASSERT_EQ(got, want) << threads;
  }
  set_num_threads(before);
}

TEST(OptimizerTest, gradients_of_another_layout_are_matched_by_element) {
  Tensor w = zeros({2, 3, 4, 4}, {.format = MemoryFormat::kChannelsLast});
  w.set_requires_grad();
  const Tensor g = arange(96).to(DType::kF32).reshape({2, 3, 4, 4});
  w.set_grad(g);
  SGD sgd({w}, {.lr = 1});
  sgd.step();
  EXPECT_EQ(values(w), values(raw::mul(g, -1)));
}

TEST(OptimizerTest, a_restored_optimizer_continues_bit_for_bit) {
  const auto run = [](bool restart) {
    Generator g(9);
    std::vector<Tensor> params{leaf(randn({5, 4}, {}, &g)), leaf(randn({7}, {}, &g))};
    auto optimizer = std::make_unique<AdamW>(params, AdamWOptions{.lr = .05, .amsgrad = true});
    for (int step = 0; step < 6; ++step) {
      if (restart && step == 3) {
        TensorDict saved;
        for (const auto& [name, t] : optimizer->state_dict()) saved.add(name, t.clone());
        optimizer = std::make_unique<AdamW>(params, AdamWOptions{.lr = 9});
        optimizer->options().amsgrad = true;
        optimizer->load_state_dict(saved);
      }
      for (Tensor& p : params) p.set_grad(randn(p.sizes(), {}, &g));
      optimizer->step();
    }
    Values all = values(params[0]);
    for (double v : values(params[1])) all.push_back(v);
    return all;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(OptimizerTest, state_has_pytorchs_names) {
  Tensor p = leaf({1, 2}), q = leaf({3});
  Adam adam({{{p}, {}}, {{q}, {.lr = .5}}});
  q.set_grad(ones({1}));
  adam.step();
  const TensorDict s = adam.state_dict();
  EXPECT_FALSE(s.contains("state.0.exp_avg"));
  for (const char* name :
       {"state.1.step", "state.1.exp_avg", "state.1.exp_avg_sq", "param_groups.0.lr",
        "param_groups.1.betas", "param_groups.1.eps", "param_groups.1.weight_decay",
        "param_groups.1.amsgrad", "param_groups.1.maximize", "param_groups.1.initial_lr"}) {
    EXPECT_TRUE(s.contains(name)) << name;
  }
  EXPECT_EQ(s["param_groups.1.params"].to_vector<int64_t>(), (std::vector<int64_t>{1}));
  EXPECT_EQ(values(s["param_groups.1.betas"]), (Values{.9, .999}));
}

TEST(OptimizerTest, a_part_of_a_state_that_is_missing_is_named) {
  Tensor p = leaf({1, 2}), q = leaf({3}), still = leaf({4});
  Adam adam({p, q, still}, {});
  p.set_grad(ones({2}));
  q.set_grad(ones({1}));
  adam.step();
  const TensorDict whole = adam.state_dict();
  const auto without = [&](const std::vector<std::string>& names) {
    TensorDict dict;
    for (const auto& [name, value] : whole) {
      if (!std::count(names.begin(), names.end(), name)) dict.add(name, value);
    }
    return dict;
  };
  adam.load_state_dict(without({"state.0.step", "state.0.exp_avg", "state.0.exp_avg_sq"}));
  for (const char* name : {"state.0.step", "state.0.exp_avg", "state.1.exp_avg_sq"}) {
    expect_error<ValueError>([&] { adam.load_state_dict(without({name})); },
                             std::string("missing: ") + name);
  }
  const TensorDict steps =
      without({"state.0.exp_avg", "state.0.exp_avg_sq", "state.1.exp_avg", "state.1.exp_avg_sq"});
  expect_error<ValueError>([&] { adam.load_state_dict(steps); }, "missing: state.1.exp_avg");
}

TEST(OptimizerTest, a_state_that_does_not_fit_changes_nothing_and_is_listed) {
  Tensor p = leaf({1, 2}), q = leaf({1, 2, 3});
  SGD two({p, q}, {.lr = .1, .momentum = .9}), one({leaf({1, 2, 3})}, {.lr = .7, .momentum = .9});
  p.set_grad(ones({2}));
  q.set_grad(ones({3}));
  two.step();
  expect_error<ValueError>([&] { one.load_state_dict(two.state_dict()); },
                           "another shape: state.0.momentum_buffer=[2] f32");
  expect_error<ValueError>([&] { one.load_state_dict(two.state_dict()); },
                           "unexpected: state.1.momentum_buffer");
  expect_error<ValueError>([&] { one.load_state_dict(two.state_dict()); },
                           "params has 2 parameters, the group has 1");
  expect_error<ValueError>([&] { one.load_state_dict({}); }, "missing: param_groups.0.lr");
  TensorDict odd;
  for (const auto& [name, value] : one.state_dict()) odd.add(name, value);
  odd.add("state.0.step", ones({2}));
  odd.add("state.0.momentum_buffer", Tensor());
  expect_error<ValueError>([&] { one.load_state_dict(odd); },
                           "not a number: state.0.step=[2] f32 cpu");
  expect_error<ValueError>([&] { one.load_state_dict(odd); }, "undefined: state.0.momentum_buffer");
  EXPECT_EQ(one.lr(), .7);
}

TEST(OptimizerTest, parameters_are_checked) {
  Tensor p = leaf({1});
  const Tensor result = mul(p, 2);
  expect_error<ValueError>([&] { SGD({p, p}); }, "each parameter must be given once");
  expect_error<ValueError>([&] { SGD({{{p}, {}}, {{p}, {}}}); }, "parameter 0 of group 1");
  expect_error<ValueError>([&] { SGD({result}); }, "only leaves can be optimized");
  expect_error<ValueError>([&] { SGD({Tensor()}); }, "is undefined");
  expect_error<DTypeError>([&] { SGD({arange(3)}); }, "parameters must be floating");
  expect_error<ShapeError>(
      [&] {
        SGD({zeros({4, 4}).slice(1, 0, 2)});
      },
      "parameters must be dense");
  expect_error<ValueError>([&] { SGD({p}, {.lr = -1}); }, "SGD: lr must be at least 0; got -1");
  expect_error<ValueError>([&] { SGD({p}, {.nesterov = true}); }, "nesterov needs momentum");
  expect_error<ValueError>([&] { Adam({p}, {.beta1 = 1}); },
                           "Adam: beta1 must be in [0, 1); got 1");
  expect_error<ValueError>([&] { AdamW({p}, {.eps = -1}); }, "AdamW: eps must be at least 0");
  expect_error<ValueError>([&] { RMSprop({p}, {.alpha = 2}); }, "RMSprop: alpha must be in [0, 1]");
  expect_error<ValueError>([&] { Adagrad({p}, {.lr = -1}); }, "Adagrad: lr must be");
  SGD sgd({p});
  expect_error<ValueError>([&] { sgd.set_lr(-1); }, "set_lr: lr must be at least 0");
}

TEST(OptimizerTest, decay_is_split_by_rank) {
  const Tensor w = leaf(ones({2, 3})), b = leaf({1, 2}), norm = leaf({3});
  std::ostringstream log;
  const auto groups = decay_groups<AdamWOptions>(
      {{"fc.weight", w}, {"fc.bias", b}, {"norm.weight", norm}, {"tied.weight", w}}, {.lr = .1},
      &log);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].params.size(), 1u);
  EXPECT_EQ(groups[1].params.size(), 2u);
  EXPECT_EQ(groups[0].options.weight_decay, 1e-2);
  EXPECT_EQ(groups[1].options.weight_decay, 0);
  EXPECT_EQ(groups[1].options.lr, .1);
  EXPECT_EQ(log.str(),
            "weight decay: 1 tensors, 6 numbers: fc.weight\n"
            "no weight decay: 2 tensors, 3 numbers: fc.bias, norm.weight\n");
  const AdamW optimizer(groups);
  EXPECT_EQ(optimizer.num_groups(), 2u);
}

TEST(OptimizerTest, steps_bump_versions_and_allocate_nothing_after_the_first) {
  std::vector<Tensor> params{leaf(ones({32, 64})), leaf(ones({64}))};
  AdamW adamw(params);
  for (Tensor& p : params) p.set_grad(ones(p.sizes()));
  adamw.step();
  adamw.step();
  const uint32_t version = params[0].version();
  const int64_t allocations = memory_stats().allocations;
  adamw.step();
  EXPECT_EQ(memory_stats().allocations, allocations);
  EXPECT_GT(params[0].version(), version);
}

}  // namespace
}  // namespace tarn::optim
