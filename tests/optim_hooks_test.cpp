// optim_hooks_test.cpp - hooks of optimizers, and norms over the gradients of several ranks.
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/scaler.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::optim {
namespace {

using Values = std::vector<double>;

Tensor leaf(Values at, Values gradient) {
  const auto n = static_cast<int64_t>(at.size());
  Tensor p = from_vector(std::vector<float>(at.begin(), at.end()), {n});
  p.set_requires_grad();
  p.set_grad(from_vector(std::vector<float>(gradient.begin(), gradient.end()), {n}));
  return p;
}

TEST(OptimizerHooks, run_before_and_after_a_step_in_their_order) {
  Tensor p = leaf({1}, {1});
  SGD sgd({p}, {.lr = 1});
  std::string ran;
  const auto note = [&](char what) {
    return [&ran, what](Optimizer& o) { ran += what + std::to_string(o.params()[0].item<int>()); };
  };
  sgd.register_step_post_hook(note('c'));
  const int64_t first = sgd.register_step_pre_hook(note('a'));
  sgd.register_step_pre_hook(note('b'));
  sgd.register_zero_grad_hook(note('z'));
  sgd.step();
  EXPECT_EQ(ran, "a1b1c0");
  sgd.remove_hook(first);
  sgd.step();
  EXPECT_EQ(ran, "a1b1c0b0c-1");
  sgd.zero_grad();
  EXPECT_EQ(ran, "a1b1c0b0c-1z-1");
}

TEST(OptimizerHooks, a_hook_may_remove_itself_and_change_gradients) {
  Tensor p = leaf({1}, {1});
  SGD sgd({p}, {.lr = 1});
  int64_t id = 0;
  id = sgd.register_step_pre_hook([&](Optimizer& o) {
    raw::mul_(p.grad(), 5);
    o.remove_hook(id);
  });
  sgd.step();
  sgd.step();
  EXPECT_EQ(p.item(), 1 - 5 - 5);
  EXPECT_THROWS_WITH(sgd.register_step_post_hook(nullptr), ValueError,
                     "optimizer: a hook must be a function");
}

TEST(OptimizerHooks, after_a_step_that_threw_none_runs) {
  Tensor p = leaf({1}, {1});
  SGD sgd({p}, {.lr = 1});
  bool after = false;
  sgd.register_step_post_hook([&](Optimizer&) { after = true; });
  const int64_t id = sgd.register_step_pre_hook([](Optimizer&) { throw ValueError("not today"); });
  EXPECT_THROWS_WITH(sgd.step(), ValueError, "not today");
  EXPECT_EQ(p.item(), 1);
  sgd.remove_hook(id);
  EXPECT_FALSE(after);
  sgd.step();
  EXPECT_TRUE(after);
}

// The other rank's gradients have the 2-norm 4, the 1-norm 4 and the largest element 4.
NormAgreement with_a_rank_of(double theirs, std::string bad = "") {
  return {.total =
              [theirs](double norm, double type) {
                if (std::isinf(type)) return std::max(norm, theirs);
                return type == 1 ? norm + theirs : std::sqrt(norm * norm + theirs * theirs);
              },
          .first = [bad](const std::string& text) { return text.empty() ? bad : text; }};
}

TEST(NormAgreement, clips_by_the_norm_of_all_ranks) {
  const NormAgreement ranks = with_a_rank_of(4);
  Tensor p = leaf({0}, {3});
  EXPECT_EQ(grad_norm({p}, 2, &ranks), 5);
  EXPECT_EQ(grad_norm({p}, 1, &ranks), 7);
  EXPECT_EQ(grad_norm({p}, INFINITY, &ranks), 4);
  EXPECT_EQ(clip_grad_norm_({p}, 1, 2, false, &ranks), 5);
  EXPECT_NEAR(p.grad().item(), 0.6, 1e-6);
}

TEST(NormAgreement, names_what_another_rank_found) {
  const NormAgreement ranks = with_a_rank_of(INFINITY, "'theirs'=[2] f32 cpu with norm inf");
  Tensor p = leaf({0}, {3});
  EXPECT_THROWS_WITH(clip_grad_norm_(TensorDict{{"mine", p}}, 1, 2, true, &ranks), ValueError,
                     "must be finite; got inf, first from 'theirs'=[2] f32 cpu with norm inf");
  EXPECT_EQ(p.grad().item(), 3);
  EXPECT_EQ(clip_grad_norm_({p}, 1, 2, false, &ranks), INFINITY);
  EXPECT_FALSE(p.grad().defined());
}

TEST(NormAgreement, holds_for_a_scaler_that_is_on_or_off) {
  for (bool enabled : {true, false}) {
    Tensor p = leaf({0}, {3});
    SGD sgd({p}, {.lr = 1});
    GradScaler scaler({.init_scale = 0.5, .enabled = enabled});
    scaler.set_agreement([](bool found) { return found; }, with_a_rank_of(4));
    const double unscaled = enabled ? 2 : 1;
    EXPECT_EQ(scaler.clip_grad_norm_(sgd, 1), 5 * unscaled);
    EXPECT_NEAR(p.grad().item(), 0.6, 1e-6);
  }
}

}  // namespace
}  // namespace tarn::optim
