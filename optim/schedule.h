// schedule.h - learning rates over time.
//
// A Schedule is a pure function: from the group's initial rate and the step number to the rate. So
// schedules compose, can be plotted, and a run resumes from the step number alone. A Scheduler puts
// one to work on an optimizer:
//
//   Scheduler scheduler(optimizer, sequential({linear_lr(0.01, 1, 500), cosine_annealing_lr(9500)},
//                                             {500}));
//   for (...) { ...; optimizer.step(); scheduler.step(); }
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tarn/core/tensor_dict.h"
#include "tarn/optim/optimizer.h"

namespace tarn::optim {

struct Schedule {
  /// Rate at step t (from 0) of a group whose initial rate is `base`.
  std::function<double(double base, int64_t t)> lr;
  /// Momentum (beta1 for Adam) at step t; empty: not changed.
  std::function<double(int64_t t)> momentum;
};

/// base * gamma^floor(t / step_size).
Schedule step_lr(int64_t step_size, double gamma = 0.1);
/// base * gamma^(number of milestones <= t).
Schedule multi_step_lr(std::vector<int64_t> milestones, double gamma = 0.1);
/// base * gamma^t.
Schedule exponential_lr(double gamma);
/// base * factor for t < total, then base.
Schedule constant_lr(double factor = 1.0 / 3, int64_t total = 5);
/// base times a factor that goes from start to end in `total` steps and stays: warm-up.
Schedule linear_lr(double start = 1.0 / 3, double end = 1, int64_t total = 5);
/// eta_min + (base - eta_min) (1 + cos(pi t / t_max)) / 2; goes up again after t_max.
Schedule cosine_annealing_lr(int64_t t_max, double eta_min = 0);
/// Cosine from base to eta_min in t_0 steps, then anew in t_0 * mult, t_0 * mult^2, ...
/// Source: Loshchilov and Hutter 2017, arXiv:1608.03983.
Schedule cosine_warm_restarts(int64_t t_0, int64_t mult = 1, double eta_min = 0);
/// base * factor(t).
Schedule lambda_lr(std::function<double(int64_t)> factor);
/// Schedule i from milestone i-1 (its t counts from there) up to milestone i.
Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones);
/// Linear up to base in `warmup` steps (base * (t + 1) / warmup), then cosine down to min_lr at
/// `total`, and min_lr from there on: the schedule of GPT-2 training scripts.
Schedule warmup_cosine(int64_t warmup, int64_t total, double min_lr = 0);

struct OneCycleOptions {
  double max_lr = 0.1;
  int64_t total_steps = 0;
  double pct_start = 0.3;         ///< share of the steps in which the rate rises
  double div_factor = 25;         ///< starts at max_lr / div_factor
  double final_div_factor = 1e4;  ///< ends at the start / final_div_factor
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
};
/// Up to max_lr and down again by cosines, momentum the other way; the groups' initial rates do not
/// matter. Stays at the last value. Source: Smith and Topin 2017, arXiv:1708.07120.
Schedule one_cycle_lr(const OneCycleOptions& options);

/// Applies a schedule to every group of an optimizer, which must outlive it.
class Scheduler {
 public:
  /// Sets the rates of step 0.
  Scheduler(Optimizer& optimizer, Schedule schedule);
  /// To the next step's rates. Call after optimizer.step(), and not for skipped steps.
  void step() { set_step(step_ + 1); }
  int64_t step_count() const { return step_; }
  /// Jumps to the rates of step t: all that resuming needs.
  void set_step(int64_t t);

 private:
  Optimizer& optimizer_;
  Schedule schedule_;
  int64_t step_ = 0;
};

struct PlateauOptions {
  bool maximize = false;  ///< the metric should grow (accuracy), not shrink (loss)
  double factor = 0.1;
  int64_t patience = 10;
  double threshold = 1e-4;  ///< relative, or absolute with `absolute`
  bool absolute = false;
  int64_t cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;  ///< smaller changes are not made
};

/// Multiplies the rates by `factor` when a metric has not improved for more than `patience` steps.
class ReduceLROnPlateau {
 public:
  explicit ReduceLROnPlateau(Optimizer& optimizer, PlateauOptions options = {});
  /// Returns true if the rates were lowered.
  bool step(double metric);
  double best() const { return best_; }
  /// best, bad steps and cooldown (f64), to go on after a restart; the rates are the optimizer's.
  TensorDict state_dict() const;
  void load_state_dict(const TensorDict& dict);

 private:
  bool improves(double metric) const;

  Optimizer& optimizer_;
  PlateauOptions options_;
  double best_;
  int64_t bad_steps_ = 0;
  int64_t cooldown_left_ = 0;
};

}  // namespace tarn::optim
