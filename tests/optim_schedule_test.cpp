// optim_schedule_test.cpp - schedules against PyTorch's numbers; clipping.
#include <cmath>
#include <functional>
#include <limits>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/parallel.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/schedule.h"
#include "tarn/optim/sgd.h"

namespace tarn::optim {
namespace {

using Values = std::vector<double>;

template <class E>
void expect_error(const std::function<void()>& f, const std::string& text) {
  try {
    f();
    FAIL() << "no error; expected: " << text;
  } catch (const E& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

Tensor leaf(const Tensor& values) {
  Tensor p = values.clone();
  p.set_requires_grad();
  return p;
}

void expect_rates(const Schedule& schedule, double base, const Values& want,
                  double tolerance = 1e-7) {
  SGD optimizer({leaf(ones({1}))}, {.lr = base});
  Scheduler scheduler(optimizer, schedule);
  for (size_t t = 0; t < want.size(); ++t) {
    EXPECT_NEAR(optimizer.lr(), want[t], tolerance) << "step " << t;
    scheduler.step();
  }
}

TEST(SchedulerTest, a_schedule_that_throws_changes_nothing) {
  Tensor p = ones({1}).set_requires_grad(), q = ones({1}).set_requires_grad();
  SGD sgd({{{p}, {.lr = 1}}, {{q}, {.lr = 2}}});
  Scheduler scheduler(sgd, {[](double base, int64_t t) {
                              TARN_CHECK(base == 1 || t < 1, "no rate");
                              return base / static_cast<double>(t + 1);
                            },
                            {}});
  EXPECT_THROW(scheduler.step(), Error);
  EXPECT_EQ(sgd.lr(0), 1);
  EXPECT_EQ(sgd.lr(1), 2);
}

TEST(ScheduleTest, step_milestones_exponential_constant) {
  expect_rates(step_lr(2), 1, {1, 1, .1, .1, .01});
  expect_rates(multi_step_lr({3, 1}, .5), 1, {1, .5, .5, .25, .25});
  expect_rates(exponential_lr(.5), 2, {2, 1, .5, .25});
  expect_rates(constant_lr(.5, 2), 1, {.5, .5, 1, 1});
  expect_rates(lambda_lr([](int64_t t) { return 1.0 / (1 + static_cast<double>(t)); }), 6,
               {6, 3, 2});
}

// A sum of rounded parts may end a little beyond: -1e-18 is no rate.
TEST(ScheduleTest, schedules_that_end_at_zero_do_not_go_below) {
  for (const double start : {.1, .2, .3, .6, .7, 1.0 / 3, 1.1, 3.0}) {
    for (int64_t total = 1; total < 100; ++total) {
      const Schedule all[] = {linear_lr(start, 0, total), cosine_annealing_lr(total),
                              cosine_warm_restarts(total), warmup_cosine(total / 2, total),
                              one_cycle_lr({.max_lr = start, .total_steps = total})};
      for (const Schedule& schedule : all) {
        for (int64_t t = 0; t < 2 * total; ++t) ASSERT_GE(schedule.lr(start, t), 0) << total;
      }
      ASSERT_EQ(all[0].lr(start, total), 0);
      ASSERT_EQ(linear_lr(0, start, total).lr(1, total + 1), start);
    }
  }
  SGD sgd({leaf(ones({1}))}, {.lr = .1});
  Scheduler scheduler(sgd, linear_lr(.1, 0, 3));
  for (int t = 0; t < 5; ++t) scheduler.step();
  EXPECT_EQ(sgd.lr(), 0);
}

TEST(ScheduleTest, linear_and_cosine_follow_pytorch) {
  expect_rates(linear_lr(.5, 1, 4), 1, {.5, .625, .75, .875, 1, 1});
  // (1 + cos(pi t / 4)) / 2, and up again.
  expect_rates(cosine_annealing_lr(4), 1,
               {1, .8535533906, .5, .1464466094, 0, .1464466094, .5, .8535533906, 1});
  expect_rates(cosine_annealing_lr(2, .2), 1, {1, .6, .2});
}

TEST(ScheduleTest, warm_restarts_follow_pytorch) {
  expect_rates(cosine_warm_restarts(3, 2), 1,
               {1, .75, .25, 1, .9330127, .75, .5, .25, .0669873, 1});
  expect_rates(cosine_warm_restarts(2), 1, {1, .5, 1, .5, 1});
}

TEST(ScheduleTest, one_cycle_follows_pytorch) {
  SGD optimizer({leaf(ones({1}))}, {.lr = .3, .momentum = .9});
  Scheduler scheduler(optimizer, one_cycle_lr({.max_lr = 1, .total_steps = 10}));
  const Values lr{.04,       .52,       1,         .95048463, .81174565,
                  .61126202, .38874198, .18825835, .04951937, 4e-6};
  const Values momentum{.95, .9, .85, .854952, .868826, .888874, .911126, .931174, .945048, .95};
  for (size_t t = 0; t < lr.size(); ++t) {
    EXPECT_NEAR(optimizer.lr(), lr[t], 1e-7) << t;
    EXPECT_NEAR(*optimizer.momentum(0), momentum[t], 1e-6) << t;
    scheduler.step();
  }
  EXPECT_NEAR(optimizer.lr(), 4e-6, 1e-9);  // stays
  Adam adam({leaf(ones({1}))});
  const Scheduler with_betas(adam, one_cycle_lr({.max_lr = 1, .total_steps = 10}));
  EXPECT_NEAR(adam.options().beta1, .95, 1e-12);
}

TEST(ScheduleTest, sequential_and_warmup_cosine) {
  expect_rates(sequential({linear_lr(.01, 1, 3), cosine_annealing_lr(5)}, {3}), 1,
               {.01, .34, .67, 1, .9045085, .6545085, .3454915, .0954915, 0});
  // (t + 1) / 2 of 1, then .1 + .45 (1 + cos(pi r)) with r = 0, .25, .5, .75, 1, 1.
  expect_rates(warmup_cosine(2, 6, .1), 1, {.5, 1, 1, .8681980515, .55, .2318019485, .1, .1});
}

TEST(ScheduleTest, every_group_keeps_its_own_rate_and_resuming_needs_the_step_alone) {
  SGD a({{{leaf(ones({1}))}, {.lr = 1}}, {{leaf(ones({1}))}, {.lr = 10}}});
  Scheduler running(a, cosine_annealing_lr(10));
  for (int i = 0; i < 7; ++i) running.step();
  EXPECT_NEAR(a.lr(1), 10 * a.lr(0), 1e-12);
  SGD b({{{leaf(ones({1}))}, {.lr = 1}}, {{leaf(ones({1}))}, {.lr = 10}}});
  b.load_state_dict(a.state_dict());  // also the scheduled rates; the initial ones stay known
  Scheduler resumed(b, cosine_annealing_lr(10));
  resumed.set_step(7);
  EXPECT_EQ(b.lr(0), a.lr(0));
  resumed.step();
  running.step();
  EXPECT_EQ(b.lr(1), a.lr(1));
  EXPECT_EQ(resumed.step_count(), 8);
}

TEST(ScheduleTest, a_rate_that_was_set_before_is_what_is_scaled) {
  SGD sgd({ones({1}).set_requires_grad()}, {.lr = .1});
  sgd.set_lr(.5);
  Scheduler scheduler(sgd, exponential_lr(.5));
  EXPECT_EQ(sgd.lr(), .5);
  scheduler.step();
  EXPECT_EQ(sgd.lr(), .25);
  Scheduler again(sgd, exponential_lr(.1));  // the first one's rate stays the base
  EXPECT_EQ(sgd.lr(), .5);
}

TEST(ScheduleTest, a_rate_that_cannot_be_changes_no_group) {
  const Tensor p = ones({1}).set_requires_grad(), q = ones({1}).set_requires_grad();
  SGD sgd({{{p}, {.lr = .1}}, {{q}, {.lr = .2}}});
  Scheduler scheduler(
      sgd, Schedule{[](double lr, int64_t t) { return t > 0 && lr > .15 ? -1 : lr / 2; }, {}});
  EXPECT_THROWS_WITH(scheduler.step(), ValueError, "lr must be at least 0; got -1");
  EXPECT_EQ(sgd.lr(0), .05);
  EXPECT_THROWS_WITH(sequential({Schedule{}, exponential_lr(.5)}, {5}), ValueError,
                     "sequential: a schedule has no lr");
  EXPECT_THROWS_WITH(one_cycle_lr({.max_lr = 1, .total_steps = 5, .max_momentum = 1.5}), ValueError,
                     "one_cycle_lr: momentum must be in [0, 1); got 1.5");
}

TEST(ScheduleTest, plateau_lowers_after_patience_and_can_be_restored) {
  SGD optimizer({leaf(ones({1}))}, {.lr = 1});
  ReduceLROnPlateau plateau(optimizer, {.factor = .1, .patience = 1, .cooldown = 1});
  EXPECT_FALSE(plateau.step(1));
  EXPECT_FALSE(plateau.step(1));      // bad 1
  EXPECT_TRUE(plateau.step(.99995));  // within the threshold: bad 2 > patience
  EXPECT_NEAR(optimizer.lr(), .1, 1e-12);
  EXPECT_FALSE(plateau.step(2));  // cooldown
  EXPECT_FALSE(plateau.step(2));  // bad 1
  ReduceLROnPlateau restored(optimizer, {.factor = .1, .patience = 1, .cooldown = 1});
  restored.load_state_dict(plateau.state_dict());
  EXPECT_EQ(restored.best(), 1);
  EXPECT_TRUE(restored.step(NAN));  // NaN is no improvement
  EXPECT_NEAR(optimizer.lr(), .01, 1e-12);
  ReduceLROnPlateau accuracy(optimizer, {.maximize = true, .patience = 0, .min_lr = .01});
  EXPECT_FALSE(accuracy.step(.5));
  EXPECT_FALSE(accuracy.step(.6));
  EXPECT_FALSE(accuracy.step(.5));  // already at min_lr
}

TEST(ScheduleTest, errors) {
  SGD plain({leaf(ones({1}))});
  expect_error<ValueError>([] { step_lr(0); }, "step_lr: step_size must be positive; got 0");
  expect_error<ValueError>([] { cosine_annealing_lr(0); }, "t_max must be positive");
  expect_error<ValueError>([] { sequential({step_lr(1)}, {3}); }, "one milestone between");
  expect_error<ValueError>(
      [] {
        sequential({step_lr(1), step_lr(1), step_lr(1)}, {3, 2});
      },
      "ascending order");
  expect_error<ValueError>([] { warmup_cosine(5, 5); }, "total must be above warmup");
  expect_error<ValueError>([] { one_cycle_lr({}); }, "total_steps must be positive");
  expect_error<ValueError>([] { one_cycle_lr({.total_steps = 5, .pct_start = 2}); }, "pct_start");
  expect_error<ValueError>([] { one_cycle_lr({.total_steps = 5, .div_factor = 0}); },
                           "both factors positive; got max_lr=0.1, div_factor=0");
  expect_error<ValueError>(
      [] {
        sequential({one_cycle_lr({.total_steps = 5}), step_lr(1)}, {3});
      },
      "either all or none");
  expect_error<ValueError>([] { lambda_lr(nullptr); }, "a function is needed");
  expect_error<ValueError>([&] { Scheduler(plain, one_cycle_lr({.total_steps = 5})); },
                           "group 0 of the optimizer has none");
  expect_error<ValueError>([&] { Scheduler(plain, Schedule()); }, "the schedule has no lr");
  expect_error<ValueError>([&] { Scheduler(plain, step_lr(1)).set_step(-1); },
                           "at least 0; got -1");
  expect_error<ValueError>([&] { ReduceLROnPlateau(plain, {.factor = 1}); },
                           "factor must be in (0, 1)");
  expect_error<ValueError>([&] { ReduceLROnPlateau(plain, {.patience = -1}); },
                           "patience and cooldown");
}

// ---- clipping

std::vector<Tensor> with_grads(const std::vector<Tensor>& grads) {
  std::vector<Tensor> params;
  for (const Tensor& g : grads) {
    params.push_back(leaf(zeros(g.sizes(), {.dtype = g.dtype()})));
    params.back().set_grad(g.clone());
  }
  return params;
}

TEST(ClipTest, norms_are_clipped_as_in_pytorch) {
  auto params = with_grads({tensor({3}), tensor({4})});
  EXPECT_EQ(clip_grad_norm_(params, 1), 5);
  EXPECT_NEAR(params[0].grad().item(), .59999990, 1e-7);
  EXPECT_NEAR(params[1].grad().item(), .79999983, 1e-7);
  params = with_grads({tensor({3}), tensor({-4})});
  EXPECT_EQ(clip_grad_norm_(params, 10), 5);
  EXPECT_EQ(params[1].grad().item(), -4);  // below the limit: as it was
  EXPECT_EQ(grad_norm(params, 1), 7);
  EXPECT_EQ(grad_norm(params, INFINITY), 4);
  params.push_back(leaf(zeros({5})));  // no gradient: does not count
  EXPECT_EQ(grad_norm(params), 5);
  EXPECT_EQ(clip_grad_norm_(std::vector<Tensor>{}, 1), 0);
}

TEST(ClipTest, norms_do_not_overflow) {
  // REPORTS C8 a, b.
  auto params = with_grads(std::vector<Tensor>(100, ones({1})));
  EXPECT_EQ(clip_grad_norm_(params, 1), 10);
  EXPECT_NEAR(params[7].grad().item(), 0.0999999990, 2e-8);
  params = with_grads(std::vector<Tensor>(100, full({1}, 1e20)));
  EXPECT_NEAR(clip_grad_norm_(params, 1) / 1e21, 1, 1e-6);
  EXPECT_NEAR(params[99].grad().item(), .1, 1e-7);
  // f64 values whose squares leave the range.
  params = with_grads({full({4}, 1e200, {.dtype = DType::kF64})});
  EXPECT_NEAR(grad_norm(params) / 2e200, 1, 1e-12);
  params = with_grads({full({4}, 1e-200, {.dtype = DType::kF64})});
  EXPECT_NEAR(grad_norm(params) / 2e-200, 1, 1e-12);
  params = with_grads({full({70000}, 60000, {.dtype = DType::kF16})});
  EXPECT_NEAR(grad_norm(params), 60000 * std::sqrt(70000.0), 1);
}

TEST(ClipTest, norms_have_the_same_bits_at_any_thread_count) {
  const int before = num_threads();
  Generator g(1);
  const auto params = with_grads(
      {randn({100003}, {}, &g), randn({5}, {}, &g), randn({0}, {}, &g), randn({33, 1000}, {}, &g)});
  for (double p : {1.0, 2.0, static_cast<double>(INFINITY)}) {
    double want = 0;
    for (int threads : {1, 2, 3}) {
      set_num_threads(threads);
      const double norm = grad_norm(params, p);
      if (threads == 1) want = norm;
      EXPECT_EQ(norm, want);
    }
  }
  set_num_threads(before);
}

TEST(ClipTest, a_non_finite_norm_names_its_parameter_or_skips_the_step) {
  // REPORTS C8 c.
  for (double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    for (double p : {1.0, 2.0, static_cast<double>(INFINITY)}) {
      auto params = with_grads({tensor({1}), tensor({2, bad}), tensor({3})});
      expect_error<ValueError>(
          [&] {
            clip_grad_norm_({{"a", params[0]}, {"b.weight", params[1]}, {"c", params[2]}}, 1, p,
                            true);
          },
          "first from 'b.weight'=[2] f32");
      expect_error<ValueError>([&] { clip_grad_norm_(params, 1, p, true); }, "parameter 1=[2] f32");
      EXPECT_EQ(params[0].grad().item(), 1);  // untouched
      EXPECT_FALSE(std::isfinite(clip_grad_norm_(params, 1, p)));
      SGD sgd(params);
      sgd.step();
      for (const Tensor& q : params) {
        EXPECT_FALSE(q.grad().defined());
        for (double v : q.to_vector<double>()) EXPECT_EQ(v, 0);
      }
    }
  }
}

TEST(ClipTest, values_are_clamped) {
  auto params = with_grads({tensor({-3, .5, 2}), tensor({NAN})});
  clip_grad_value_(params, 1);
  EXPECT_EQ(params[0].grad().to_vector<double>(), (Values{-1, .5, 1}));
  EXPECT_TRUE(std::isnan(params[1].grad().item()));
  expect_error<ValueError>([&] { clip_grad_value_(params, -1); }, "clip_value must be at least 0");
  expect_error<ValueError>([&] { clip_grad_norm_(params, -1); }, "max_norm must be at least 0");
  expect_error<ValueError>([&] { clip_grad_norm_(params, 1, 3); },
                           "norm_type must be 1, 2 or infinity");
}

}  // namespace
}  // namespace tarn::optim
