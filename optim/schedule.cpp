// schedule.cpp - the closed forms, which equal PyTorch's recursive ones.
#include "tarn/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tarn/core/factory.h"

namespace tarn::optim {
namespace {

constexpr double kPi = 3.14159265358979323846;

void check_positive(const char* op, const char* name, int64_t value) {
  TARN_CHECK_AS(ValueError, value > 0, op, ": ", name, " must be positive; got ", value);
}

/// From start (p = 0) to end (p = 1) along half a cosine.
double cosine(double start, double end, double p) {
  return end + (start - end) / 2 * (1 + std::cos(kPi * p));
}

Schedule scaled(std::function<double(int64_t)> factor) {
  return {[factor = std::move(factor)](double base, int64_t t) { return base * factor(t); }, {}};
}

}  // namespace

Schedule step_lr(int64_t step_size, double gamma) {
  check_positive("step_lr", "step_size", step_size);
  return scaled([=](int64_t t) { return std::pow(gamma, static_cast<double>(t / step_size)); });
}

Schedule multi_step_lr(std::vector<int64_t> milestones, double gamma) {
  std::sort(milestones.begin(), milestones.end());
  return scaled([milestones = std::move(milestones), gamma](int64_t t) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), t);
    return std::pow(gamma, static_cast<double>(passed - milestones.begin()));
  });
}

Schedule exponential_lr(double gamma) {
  return scaled([=](int64_t t) { return std::pow(gamma, static_cast<double>(t)); });
}

Schedule constant_lr(double factor, int64_t total) {
  return scaled([=](int64_t t) { return t < total ? factor : 1.0; });
}

Schedule linear_lr(double start, double end, int64_t total) {
  check_positive("linear_lr", "total", total);
  return scaled([=](int64_t t) {
    if (t >= total) return end;  // the sum below may round to the other side of it
    return start + (end - start) * static_cast<double>(t) / static_cast<double>(total);
  });
}

Schedule cosine_annealing_lr(int64_t t_max, double eta_min) {
  check_positive("cosine_annealing_lr", "t_max", t_max);
  return {[=](double base, int64_t t) {
            return cosine(base, eta_min, static_cast<double>(t) / static_cast<double>(t_max));
          },
          {}};
}

Schedule cosine_warm_restarts(int64_t t_0, int64_t mult, double eta_min) {
  check_positive("cosine_warm_restarts", "t_0", t_0);
  check_positive("cosine_warm_restarts", "mult", mult);
  return {[=](double base, int64_t t) {
            int64_t length = t_0;
            if (mult == 1) {
              t %= t_0;
            } else {
              for (; t >= length; length *= mult) t -= length;
            }
            return cosine(base, eta_min, static_cast<double>(t) / static_cast<double>(length));
          },
          {}};
}

Schedule lambda_lr(std::function<double(int64_t)> factor) {
  TARN_CHECK_AS(ValueError, static_cast<bool>(factor), "lambda_lr: a function is needed");
  return scaled(std::move(factor));
}

Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones) {
  TARN_CHECK_AS(ValueError, !schedules.empty() && milestones.size() + 1 == schedules.size(),
                "sequential: one milestone between each two schedules is needed; got ",
                schedules.size(), " schedules and ", milestones.size(), " milestones");
  TARN_CHECK_AS(ValueError, std::is_sorted(milestones.begin(), milestones.end()),
                "sequential: milestones must be in ascending order");
  for (const Schedule& s : schedules) {
    TARN_CHECK_AS(ValueError, static_cast<bool>(s.lr), "sequential: a schedule has no lr");
  }
  const auto at = [milestones](int64_t t) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), t);
    const auto i = static_cast<size_t>(passed - milestones.begin());
    return std::pair(i, i == 0 ? t : t - milestones[i - 1]);
  };
  const bool momentum = std::any_of(schedules.begin(), schedules.end(),
                                    [](const Schedule& s) { return bool(s.momentum); });
  TARN_CHECK_AS(ValueError,
                !momentum || std::all_of(schedules.begin(), schedules.end(),
                                         [](const Schedule& s) { return bool(s.momentum); }),
                "sequential: either all or none of the schedules may set the momentum");
  Schedule result;
  result.lr = [schedules, at](double base, int64_t t) {
    const auto [i, local] = at(t);
    return schedules[i].lr(base, local);
  };
  if (momentum) {
    result.momentum = [schedules, at](int64_t t) {
      const auto [i, local] = at(t);
      return schedules[i].momentum(local);
    };
  }
  return result;
}

Schedule warmup_cosine(int64_t warmup, int64_t total, double min_lr) {
  TARN_CHECK_AS(ValueError, warmup >= 0 && total > warmup,
                "warmup_cosine: total must be above warmup; got warmup=", warmup,
                ", total=", total);
  return {[=](double base, int64_t t) {
            if (t < warmup) return base * static_cast<double>(t + 1) / static_cast<double>(warmup);
            const double p = static_cast<double>(t - warmup) / static_cast<double>(total - warmup);
            return cosine(base, min_lr, std::min(p, 1.0));
          },
          {}};
}

Schedule one_cycle_lr(const OneCycleOptions& o) {
  check_positive("one_cycle_lr", "total_steps", o.total_steps);
  TARN_CHECK_AS(ValueError, o.pct_start >= 0 && o.pct_start <= 1,
                "one_cycle_lr: pct_start must be in [0, 1]; got ", o.pct_start);
  TARN_CHECK_AS(ValueError, o.max_lr >= 0 && o.div_factor > 0 && o.final_div_factor > 0,
                "one_cycle_lr: max_lr must be at least 0 and both factors positive; got max_lr=",
                o.max_lr, ", div_factor=", o.div_factor, ", final_div_factor=", o.final_div_factor);
  for (const double m : {o.base_momentum, o.max_momentum}) {
    detail::check_option(m >= 0 && m < 1, "one_cycle_lr", "momentum", "in [0, 1)", m);
  }
  const double up_end = o.pct_start * static_cast<double>(o.total_steps) - 1;
  const double down_end = static_cast<double>(o.total_steps - 1);
  // Two phases: low to high until up_end, then high to last until down_end.
  const auto cycle = [=](double low, double high, double last, int64_t step) {
    const double t = std::min(static_cast<double>(step), down_end);
    if (t <= up_end) return cosine(low, high, up_end > 0 ? t / up_end : 1);
    return cosine(high, last, down_end > up_end ? (t - up_end) / (down_end - up_end) : 1);
  };
  const double initial = o.max_lr / o.div_factor;
  Schedule schedule;
  schedule.lr = [=](double, int64_t t) {
    return cycle(initial, o.max_lr, initial / o.final_div_factor, t);
  };
  if (o.cycle_momentum) {
    schedule.momentum = [=](int64_t t) {
      return cycle(o.max_momentum, o.base_momentum, o.max_momentum, t);
    };
  }
  return schedule;
}

Scheduler::Scheduler(Optimizer& optimizer, Schedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)) {
  TARN_CHECK_AS(ValueError, static_cast<bool>(schedule_.lr), "Scheduler: the schedule has no lr");
  if (schedule_.momentum) {
    for (size_t g = 0; g < optimizer_.num_groups(); ++g) {
      const double* momentum = optimizer_.momentum(g);
      TARN_CHECK_AS(ValueError, momentum && *momentum > 0,
                    "Scheduler: the schedule sets the momentum, and group ", g,
                    " of the optimizer has none; use cycle_momentum = false");
    }
  }
  set_step(0);
}

void Scheduler::set_step(int64_t t) {
  TARN_CHECK_AS(ValueError, t >= 0, "Scheduler: a step must be at least 0; got ", t);
  optimizer_.fix_initial_lr();  // also of groups that were added since
  std::vector<double> rates;    // all of them first: a schedule of the user's may throw
  for (size_t g = 0; g < optimizer_.num_groups(); ++g) {
    rates.push_back(schedule_.lr(optimizer_.initial_lr(g), t));
    detail::check_option(rates.back() >= 0, "Scheduler", "lr", "at least 0", rates.back());
  }
  const double momentum = schedule_.momentum ? schedule_.momentum(t) : 0;
  for (size_t g = 0; g < rates.size(); ++g) optimizer_.set_lr(g, rates[g]);
  for (size_t g = 0; schedule_.momentum && g < rates.size(); ++g) {
    *optimizer_.momentum(g) = momentum;
  }
  step_ = t;
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, PlateauOptions options)
    : optimizer_(optimizer),
      options_(options),
      best_(options.maximize ? -std::numeric_limits<double>::infinity()
                             : std::numeric_limits<double>::infinity()) {
  TARN_CHECK_AS(ValueError, options.factor > 0 && options.factor < 1,
                "ReduceLROnPlateau: factor must be in (0, 1); got ", options.factor);
  TARN_CHECK_AS(ValueError, options.patience >= 0 && options.cooldown >= 0,
                "ReduceLROnPlateau: patience and cooldown must be at least 0; got ",
                options.patience, " and ", options.cooldown);
}

bool ReduceLROnPlateau::improves(double metric) const {
  const double sign = options_.maximize ? 1 : -1;
  if (options_.absolute) return sign * (metric - best_) > options_.threshold;
  // From the first finite value on, the margin is relative to the best.
  if (std::isinf(best_)) return sign * (metric - best_) > 0;
  return sign * (metric - best_ * (1 + sign * options_.threshold)) > 0;
}

bool ReduceLROnPlateau::step(double metric) {
  if (improves(metric)) {
    best_ = metric;
    bad_steps_ = 0;
  } else {
    ++bad_steps_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_steps_ = 0;
  }
  if (bad_steps_ <= options_.patience) return false;
  cooldown_left_ = options_.cooldown;
  bad_steps_ = 0;
  bool lowered = false;
  for (size_t g = 0; g < optimizer_.num_groups(); ++g) {
    const double old = optimizer_.lr(g), lr = std::max(old * options_.factor, options_.min_lr);
    if (old - lr <= options_.eps) continue;
    optimizer_.set_lr(g, lr);
    lowered = true;
  }
  return lowered;
}

TensorDict ReduceLROnPlateau::state_dict() const {
  const double values[] = {best_, static_cast<double>(bad_steps_),
                           static_cast<double>(cooldown_left_)};
  return {{"plateau", from_vector(std::vector<double>(values, values + 3), {3})}};
}

void ReduceLROnPlateau::load_state_dict(const TensorDict& dict) {
  const std::vector<double> values = dict.at("plateau").to_vector<double>();
  TARN_CHECK_AS(ValueError, values.size() == 3,
                "ReduceLROnPlateau: the state must hold 3 numbers; got ", values.size());
  best_ = values[0];
  bad_steps_ = static_cast<int64_t>(values[1]);
  cooldown_left_ = static_cast<int64_t>(values[2]);
}

}  // namespace tarn::optim
