// optim_groups_test.cpp - groups that join an optimizer later.
#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/rmsprop.h"
#include "tarn/optim/schedule.h"
#include "tarn/optim/sgd.h"

namespace tarn::optim {
namespace {

Tensor leaf(double value) {
  Tensor p = full({3}, value);
  p.set_requires_grad();
  return p;
}

/// Steps with gradients of 1, 2, ... of both parameters: q from the third step on.
template <class O, class Options>
void expect_as_if_alone(const Options& options, const Options& later) {
  Tensor p = leaf(1), q = leaf(1), lone_p = leaf(1), lone_q = leaf(1);
  O both({p}, options), first({lone_p}, options), second({lone_q}, later);
  for (int step = 1; step <= 6; ++step) {
    if (step == 3) both.add_param_group({{q}, later});
    for (Tensor* x : {&p, &q, &lone_p, &lone_q}) x->set_grad(full({3}, step));
    both.step();
    first.step();
    if (step >= 3) second.step();
  }
  EXPECT_EQ(p.to_vector<float>(), lone_p.to_vector<float>());
  EXPECT_EQ(q.to_vector<float>(), lone_q.to_vector<float>());
  EXPECT_NE(q.to_vector<float>()[0], 1);
  EXPECT_EQ(both.num_groups(), 2u);
  EXPECT_EQ(both.options(1).lr, later.lr);
}

TEST(OptimGroups, a_group_that_joins_later_is_trained_as_by_an_optimizer_of_its_own) {
  expect_as_if_alone<SGD, SGDOptions>({.lr = .1, .momentum = .9}, {.lr = .2, .momentum = .5});
  expect_as_if_alone<Adam, AdamOptions>({.lr = .1}, {.lr = .2, .weight_decay = .1});
  expect_as_if_alone<AdamW, AdamWOptions>({.lr = .1}, {.lr = .2, .amsgrad = true});
  expect_as_if_alone<RMSprop, RMSpropOptions>({.lr = .1}, {.lr = .2, .centered = true});
  expect_as_if_alone<Adagrad, AdagradOptions>({.lr = .1}, {.lr = .2});
}

TEST(OptimGroups, a_schedule_takes_a_later_group_from_its_own_rate) {
  SGD sgd({leaf(1)}, {.lr = 1});
  Scheduler scheduler(sgd, exponential_lr(.5));
  scheduler.step();
  sgd.add_param_group({{leaf(2)}, {.lr = 8}});
  scheduler.step();
  EXPECT_EQ(sgd.lr(0), .25);
  EXPECT_EQ(sgd.lr(1), 2);
  EXPECT_EQ(sgd.initial_lr(1), 8);
}

TEST(OptimGroups, an_option_that_is_switched_on_later_is_saved_and_restored) {
  Tensor a = leaf(1), b = leaf(2);
  Adam adam({a, b}, {.lr = .1});
  for (Tensor* p : {&a, &b}) p->set_grad(ones_like(p->detach()));
  adam.step();
  adam.options().amsgrad = true;
  b.zero_grad();
  adam.step();
  const TensorDict state = adam.state_dict();
  EXPECT_EQ(state["state.1.max_exp_avg_sq"].abs().sum().item(), 0);
  EXPECT_NO_THROW(adam.load_state_dict(state));
}

TEST(OptimGroups, its_state_is_saved_and_restored_with_the_others) {
  Tensor p = leaf(1), q = leaf(2);
  AdamW adamw({p}, {.lr = .1});
  adamw.add_param_group({{q}, {.lr = .2}});
  p.set_grad(ones({3}));
  q.set_grad(ones({3}));
  adamw.step();
  const TensorDict state = adamw.state_dict();
  EXPECT_TRUE(state.contains("state.1.exp_avg"));
  EXPECT_TRUE(state.contains("param_groups.1.lr"));
  AdamW other({ParamGroup<AdamWOptions>{{leaf(1)}, {}}, ParamGroup<AdamWOptions>{{leaf(2)}, {}}});
  other.load_state_dict(state);
  EXPECT_EQ(other.lr(1), .2);
}

TEST(OptimGroups, a_group_that_is_refused_leaves_the_optimizer_as_it_was) {
  Tensor p = leaf(1);
  AdamW adamw({p}, {.lr = .1});
  EXPECT_THROWS_WITH(adamw.add_param_group({{leaf(1)}, {.lr = -1}}), ValueError,
                     "AdamW: lr must be at least 0; got -1");
  EXPECT_THROWS_WITH(adamw.add_param_group({{p}, {}}), ValueError,
                     "optimizer: each parameter must be given once; got parameter 0 of group 1");
  SGD sgd({p}, {.lr = .1});
  EXPECT_THROWS_WITH(sgd.add_param_group({{leaf(1)}, {.lr = .1, .nesterov = true}}), ValueError,
                     "SGD: nesterov needs momentum");
  EXPECT_EQ(sgd.num_groups(), 1u);
  EXPECT_EQ(adamw.num_groups(), 1u);
  p.set_grad(ones({3}));
  adamw.step();
  EXPECT_EQ(adamw.state_dict().find("param_groups.1.lr"), nullptr);
}

TEST(OptimGroups, without_parameters_there_is_no_optimizer) {
  const std::vector<Tensor> none;
  EXPECT_THROWS_WITH(SGD{none}, ValueError, "SGD: there must be parameters to optimize; got none");
  EXPECT_THROWS_WITH(AdamW{none}, ValueError, "AdamW: there must be parameters to optimize");
  EXPECT_THROWS_WITH(RMSprop{none}, ValueError, "RMSprop: there must be parameters");
  EXPECT_THROWS_WITH(Adagrad{none}, ValueError, "Adagrad: there must be parameters");
  const Adam one_is_empty({{{leaf(1)}, {}}, {none, {}}});  // as decay_groups may give them
  EXPECT_EQ(one_is_empty.num_groups(), 2u);
}

TEST(OptimGroups, a_group_that_is_not_there_is_named) {
  Adam adam({leaf(1)});
  SGD sgd({leaf(1)});
  const auto none = "optimizer: no group 1; there are 1";
  EXPECT_THROWS_WITH(adam.options(1), IndexError, none);
  EXPECT_THROWS_WITH(adam.momentum(1), IndexError, none);
  EXPECT_THROWS_WITH(adam.lr(1), IndexError, none);
  EXPECT_THROWS_WITH(adam.set_lr(1, .1), IndexError, none);
  EXPECT_THROWS_WITH(sgd.options(1), IndexError, none);
  EXPECT_THROWS_WITH(sgd.initial_lr(1), IndexError, none);
  EXPECT_THROWS_WITH(sgd.params(1), IndexError, none);
}

}  // namespace
}  // namespace tarn::optim
