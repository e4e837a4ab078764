// optim_scaler_test.cpp - GradScaler: PyTorch's state machine, skipped steps, hysteresis, state.
#include <cmath>
#include <limits>

#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/scaler.h"
#include "tarn/optim/sgd.h"

namespace tarn::optim {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

/// One parameter [2] at {1, 2} and plain SGD with rate 1: a step subtracts the gradient.
struct Problem {
  Tensor w = tensor({1, 2}).set_requires_grad();
  SGD sgd{{w}, {.lr = 1}};

  /// loss = factors . w, so the gradient is `factors` times the scale.
  void backward(const GradScaler& scaler, double a, double b) {
    sgd.zero_grad();
    scaler.scale(sum(w * tensor({a, b}))).backward();
  }
  /// One whole step; returns whether it was made.
  bool train(GradScaler& scaler, double a, double b) {
    backward(scaler, a, b);
    const bool stepped = scaler.step(sgd);
    scaler.update();
    return stepped;
  }
  Values values() const { return w.to_vector<double>(); }
};

TEST(GradScaler, starts_with_pytorchs_defaults) {
  const GradScalerOptions o;
  EXPECT_EQ(o.init_scale, 65536);
  EXPECT_EQ(o.growth_factor, 2);
  EXPECT_EQ(o.backoff_factor, 0.5);
  EXPECT_EQ(o.growth_interval, 2000);
  EXPECT_EQ(GradScaler().get_scale(), 65536);
}

TEST(GradScaler, the_step_is_that_of_the_plain_loss) {
  Problem p;
  GradScaler scaler;
  p.backward(scaler, 0.5, 0.25);
  EXPECT_EQ(p.w.grad().to_vector<double>(), (Values{32768, 16384}));  // 65536 times
  EXPECT_TRUE(scaler.step(p.sgd));
  scaler.update();
  EXPECT_EQ(p.values(), (Values{0.5, 1.75}));
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_EQ(scaler.growth_tracker(), 1);
}

TEST(GradScaler, an_overflow_skips_the_step_and_halves_the_scale) {
  for (const double bad : {kInf, -kInf, static_cast<double>(NAN)}) {
    Problem p;
    GradScaler scaler;
    EXPECT_FALSE(p.train(scaler, 1, bad));
    EXPECT_EQ(p.values(), (Values{1, 2}));
    EXPECT_EQ(scaler.get_scale(), 32768);
    EXPECT_TRUE(p.train(scaler, 1, 1));
    EXPECT_EQ(p.values(), (Values{0, 1}));
  }
}

TEST(GradScaler, clean_steps_double_the_scale_and_an_overflow_counts_anew) {
  Problem p;
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  p.train(scaler, 0, 0);
  p.train(scaler, 0, 0);
  EXPECT_EQ(scaler.get_scale(), 8);
  p.train(scaler, 0, 0);
  EXPECT_EQ(scaler.get_scale(), 16);
  p.train(scaler, 0, 0);
  p.train(scaler, kInf, 0);
  EXPECT_EQ(scaler.get_scale(), 8);
  p.train(scaler, 0, 0);
  p.train(scaler, 0, 0);
  EXPECT_EQ(scaler.get_scale(), 8);
  p.train(scaler, 0, 0);
  EXPECT_EQ(scaler.get_scale(), 16);
}

TEST(GradScaler, the_scale_stays_finite_in_f32) {
  Problem p;
  GradScaler scaler({.init_scale = 0x1p127, .growth_interval = 1});
  p.train(scaler, 0, 0);
  EXPECT_EQ(scaler.get_scale(), 0x1p127);  // 2^128 is infinite
}

TEST(GradScaler, the_life_of_a_scale) {
  // REPORTS C13: an overflow in the third of five steps.
  Problem p;
  GradScaler scaler({.growth_interval = 2});
  Values scales;
  for (const double gradient : {0.5, 0.5, kInf, 0.5, 0.5}) {
    const Values before = p.values();
    EXPECT_EQ(p.train(scaler, gradient, gradient), gradient == 0.5);
    EXPECT_EQ(p.values() == before, gradient == kInf);
    scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(scales, (Values{65536, 131072, 65536, 65536, 131072}));
  GradScaler eager({.growth_interval = 1});
  for (int step = 0; step < 150; ++step) EXPECT_TRUE(p.train(eager, 0, 0));
  EXPECT_EQ(eager.get_scale(), 0x1p127);
  // Gradients 3072, 4096 at scale 1024 are 3, 4: clipped to norm 1 after the division, not before.
  GradScaler thousand({.init_scale = 1024});
  p.backward(thousand, 3, 4);
  EXPECT_EQ(p.w.grad().to_vector<double>(), (Values{3072, 4096}));
  thousand.unscale_(p.sgd);
  clip_grad_norm_({p.w}, 1.0);
  EXPECT_NEAR(p.w.grad().to_vector<double>()[0], 0.6, 1e-6);
  EXPECT_NEAR(p.w.grad().to_vector<double>()[1], 0.8, 1e-6);
  EXPECT_THROWS_WITH(thousand.unscale_(p.sgd), ValueError, "are unscaled already");
}

TEST(GradScaler, its_inverse_stays_finite_and_its_options_stay_sane) {
  Problem p;
  GradScaler scaler;
  for (int step = 0; step < 200; ++step) p.train(scaler, kInf, 0);
  EXPECT_EQ(scaler.get_scale(), std::numeric_limits<float>::min());
  EXPECT_TRUE(p.train(scaler, 1, 1));
  EXPECT_TRUE(std::isfinite(p.w.sum().item()));
  TensorDict state;
  for (const auto& [name, value] : scaler.state_dict()) {
    state.add(name, name == "growth_interval" ? zeros_like(value) : value);
  }
  EXPECT_THROWS_WITH(scaler.load_state_dict(state), ValueError, "growth_interval");
}

TEST(GradScaler, hysteresis_forgives_and_the_floor_holds) {
  Problem p;
  GradScaler scaler({.init_scale = 8, .growth_interval = 2, .hysteresis = 2, .min_scale = 4});
  EXPECT_FALSE(p.train(scaler, kInf, 0));
  EXPECT_EQ(scaler.get_scale(), 8) << "the first is forgiven";
  p.train(scaler, kInf, 0);
  EXPECT_EQ(scaler.get_scale(), 4);
  p.train(scaler, kInf, 0);
  EXPECT_EQ(scaler.get_scale(), 4) << "not below min_scale";
  p.train(scaler, 0, 0);
  p.train(scaler, 0, 0);
  EXPECT_EQ(scaler.get_scale(), 8) << "grown";
  p.train(scaler, kInf, 0);
  EXPECT_EQ(scaler.get_scale(), 8) << "and forgiving again";
}

TEST(GradScaler, unscaled_gradients_can_be_clipped) {
  Problem p;
  GradScaler scaler;
  p.backward(scaler, 3, 4);
  scaler.unscale_(p.sgd);
  EXPECT_EQ(p.w.grad().to_vector<double>(), (Values{3, 4}));
  EXPECT_DOUBLE_EQ(clip_grad_norm_({p.w}, 1.0), 5);
  EXPECT_TRUE(scaler.step(p.sgd));
  scaler.update();
  EXPECT_NEAR(p.values()[0], 1 - 0.6, 1e-6);
  EXPECT_NEAR(p.values()[1], 2 - 0.8, 1e-6);
}

TEST(GradScaler, unscaling_and_clipping_are_one_pass_with_the_same_result) {
  Problem p;
  GradScaler scaler;
  p.backward(scaler, 3, 4);
  EXPECT_DOUBLE_EQ(scaler.clip_grad_norm_(p.sgd, 1.0), 5);
  EXPECT_NEAR(p.w.grad().to_vector<double>()[0], 0.6, 1e-6);
  EXPECT_TRUE(scaler.step(p.sgd));
  scaler.update();
  EXPECT_NEAR(p.values()[1], 2 - 0.8, 1e-6);
  p.backward(scaler, 0.5, 0.25);  // within bounds: only unscaled
  EXPECT_DOUBLE_EQ(scaler.clip_grad_norm_(p.sgd, 1.0), std::sqrt(0.3125));
  EXPECT_EQ(p.w.grad().to_vector<double>(), (Values{0.5, 0.25}));
  EXPECT_THROWS_WITH(scaler.unscale_(p.sgd), ValueError, "gradients are unscaled already");
  EXPECT_THROWS_WITH(scaler.clip_grad_norm_(p.sgd, -1), ValueError,
                     "clip_grad_norm_: max_norm must be at least 0; got -1");
  EXPECT_TRUE(scaler.step(p.sgd));
  EXPECT_THROWS_WITH(scaler.clip_grad_norm_(p.sgd, 1), ValueError,
                     "clip_grad_norm_: this optimizer has stepped already");
}

TEST(GradScaler, an_overflow_found_while_clipping_skips_the_step) {
  for (double bad : {kInf, std::nan("")}) {
    Problem p;
    GradScaler scaler;
    p.backward(scaler, bad, 4);
    EXPECT_FALSE(std::isfinite(scaler.clip_grad_norm_(p.sgd, 1.0)));
    EXPECT_FALSE(scaler.step(p.sgd));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 32768);
    EXPECT_EQ(p.values(), (Values{1, 2}));
  }
}

TEST(GradScaler, disabled_it_clips_as_ever) {
  Problem p;
  GradScaler scaler({.enabled = false});
  p.backward(scaler, 3, 4);
  EXPECT_DOUBLE_EQ(scaler.clip_grad_norm_(p.sgd, 1.0), 5);
  EXPECT_NEAR(p.w.grad().to_vector<double>()[1], 0.8, 1e-6);
}

TEST(GradScaler, an_overflow_found_by_unscale_skips_the_step_after_clipping) {
  Problem p;
  GradScaler scaler;
  p.backward(scaler, kInf, 4);
  scaler.unscale_(p.sgd);
  clip_grad_norm_({p.w}, 1.0);
  EXPECT_FALSE(scaler.step(p.sgd));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 32768);
  EXPECT_EQ(p.values(), (Values{1, 2}));
}

TEST(GradScaler, optimizers_are_skipped_one_by_one_and_share_the_scale) {
  Problem good, bad;
  GradScaler scaler;
  good.backward(scaler, 1, 1);
  bad.backward(scaler, kInf, 1);
  EXPECT_TRUE(scaler.step(good.sgd));
  EXPECT_FALSE(scaler.step(bad.sgd));
  scaler.update();
  EXPECT_EQ(good.values(), (Values{0, 1}));
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST(GradScaler, all_skip_together_where_ranks_agree) {
  Problem p;
  GradScaler scaler;
  bool other = true;
  scaler.set_agreement([&](bool found) { return found || other; });
  EXPECT_FALSE(p.train(scaler, 1, 1));
  EXPECT_EQ(scaler.get_scale(), 32768);
  other = false;
  EXPECT_TRUE(p.train(scaler, 1, 1));
}

TEST(GradScaler, losses_of_halves_are_scaled_in_f32) {
  const Tensor loss = tensor(std::initializer_list<double>{2}).to(DType::kF16);
  const Tensor scaled = GradScaler().scale(loss);
  EXPECT_EQ(scaled.dtype(), DType::kF32);
  EXPECT_EQ(scaled.item(), 131072);  // beyond f16's 65504
}

TEST(GradScaler, half_parameters_step_through_their_master_copy) {
  Tensor w = tensor({1, 2}).to(DType::kF16).set_requires_grad();
  SGD sgd({w}, {.lr = 1});
  GradScaler scaler({.init_scale = 1024});
  scaler.scale(sum(w * tensor({0.5, 0.25}).to(DType::kF16))).backward();
  EXPECT_THROWS_WITH(scaler.unscale_(sgd), ValueError,
                     "unscale_: f16 gradients would lose what the scale has kept; got [2] f16");
  EXPECT_THROWS_WITH(scaler.update(), ValueError, "no optimizer was stepped or unscaled");
  GradScaler fresh({.init_scale = 1024});
  EXPECT_TRUE(fresh.step(sgd));
  EXPECT_EQ(w.to_vector<double>(), (Values{0.5, 1.75}));
}

TEST(GradScaler, disabled_it_is_not_there) {
  Problem p;
  GradScaler scaler({.enabled = false});
  EXPECT_TRUE(p.train(scaler, 1, 1));
  EXPECT_EQ(p.values(), (Values{0, 1}));
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
  scaler.load_state_dict({});
}

TEST(GradScaler, calls_out_of_order_are_errors) {
  Problem p;
  GradScaler scaler;
  EXPECT_THROWS_WITH(scaler.update(), ValueError,
                     "update: no optimizer was stepped or unscaled since the last update()");
  p.backward(scaler, 1, 1);
  scaler.unscale_(p.sgd);
  EXPECT_THROWS_WITH(scaler.unscale_(p.sgd), ValueError,
                     "unscale_: this optimizer's gradients are unscaled already");
  scaler.step(p.sgd);
  EXPECT_THROWS_WITH(scaler.step(p.sgd), ValueError,
                     "step: this optimizer has stepped already; call update() first");
  EXPECT_THROWS_WITH(scaler.unscale_(p.sgd), ValueError,
                     "unscale_: this optimizer has stepped already");
  scaler.update();
  EXPECT_TRUE(p.train(scaler, 1, 1));
}

TEST(GradScaler, options_are_checked) {
  EXPECT_THROWS_WITH(GradScaler({.init_scale = 0}), ValueError,
                     "GradScaler: the scale must be positive and finite in f32; got 0");
  EXPECT_THROWS_WITH(GradScaler({.growth_factor = 1}), ValueError,
                     "growth_factor must be above 1; got 1");
  EXPECT_THROWS_WITH(GradScaler({.backoff_factor = 1}), ValueError,
                     "backoff_factor must be between 0 and 1; got 1");
  EXPECT_THROWS_WITH(GradScaler({.growth_interval = 0}), ValueError,
                     "growth_interval must be at least 1; got 0");
  EXPECT_THROWS_WITH(GradScaler({.hysteresis = 0}), ValueError,
                     "hysteresis must be at least 1; got 0");
  EXPECT_THROWS_WITH(GradScaler({.min_scale = -1}), ValueError,
                     "min_scale must be at least 0 and at most init_scale; got -1");
  GradScaler scaler;
  EXPECT_THROWS_WITH(scaler.update(kInf), ValueError, "update: the scale must be positive");
}

TEST(GradScaler, state_goes_on_where_it_was_saved) {
  Problem p, q;
  const GradScalerOptions options{.init_scale = 16, .growth_interval = 3, .hysteresis = 2};
  GradScaler first(options);
  p.train(first, 0, 0);
  p.train(first, kInf, 0);
  p.train(first, 0, 0);
  GradScaler second;
  second.load_state_dict(first.state_dict());
  for (const double g : {0.0, kInf, 0.0, 0.0, 0.0, kInf}) {
    p.train(first, g, 0);
    q.train(second, g, 0);
    EXPECT_EQ(first.get_scale(), second.get_scale());
    EXPECT_EQ(first.growth_tracker(), second.growth_tracker());
  }
  EXPECT_THROWS_WITH(second.load_state_dict({}), ValueError, "GradScaler: the state lacks scale,");
}

TEST(GradScaler, takes_pytorchs_own_state) {
  TensorDict state;
  const auto add = [&](const char* name, double value) { state.add(name, scalar_tensor(value)); };
  add("scale", 1024);
  add("growth_factor", 4);
  add("backoff_factor", .25);
  add("growth_interval", 3);
  add("_growth_tracker", 2);
  GradScaler scaler({.hysteresis = 2, .min_scale = 512});
  scaler.load_state_dict(state);
  EXPECT_EQ(scaler.get_scale(), 1024);
  EXPECT_EQ(scaler.growth_tracker(), 2);
  EXPECT_EQ(scaler.state_dict()["hysteresis"].item(), 1);
  EXPECT_EQ(scaler.state_dict()["_hysteresis_tracker"].item(), 1);
  EXPECT_EQ(scaler.state_dict()["min_scale"].item(), 0);
  Problem p;
  p.train(scaler, kInf, 0);
  EXPECT_EQ(scaler.get_scale(), 256);
  add("hysteresis", 2);
  EXPECT_THROWS_WITH(scaler.load_state_dict(state), ValueError,
                     "GradScaler: the state lacks _hysteresis_tracker, min_scale");
  EXPECT_EQ(scaler.get_scale(), 256);
}

TEST(GradScaler, the_scale_can_be_set) {
  GradScaler scaler;
  scaler.update(128);
  EXPECT_EQ(scaler.get_scale(), 128);
}

}  // namespace
}  // namespace tarn::optim
