// optim_golden_test.cpp - optimizers, clipping and schedules give PyTorch's numbers.
#include <memory>

#include "golden/reader.h"
#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/schedule.h"
#include "tarn/optim/sgd.h"

namespace tarn::golden {
namespace {

/// The fields that two option sets of a golden case may give, over what they start from.
void read_options(const Json& json, optim::SGDOptions& o) {
  o.lr = json.value("lr", o.lr);
  o.momentum = json.value("momentum", o.momentum);
  o.dampening = json.value("dampening", o.dampening);
  o.weight_decay = json.value("weight_decay", o.weight_decay);
  o.nesterov = json.value("nesterov", o.nesterov);
}
template <class Options>
void read_options(const Json& json, Options& o) {
  o.lr = json.value("lr", o.lr);
  o.eps = json.value("eps", o.eps);
  o.weight_decay = json.value("weight_decay", o.weight_decay);
  o.amsgrad = json.value("amsgrad", o.amsgrad);
  if (json.contains("betas")) o.beta1 = json["betas"][0], o.beta2 = json["betas"][1];
}

/// One group, or two if the case has a second one for its last tensor.
template <class Optimizer, class Options>
std::unique_ptr<optim::Optimizer> make_optimizer(const Json& entry, std::vector<Tensor> params) {
  Options first;
  read_options(entry.at("options"), first);
  if (entry.at("second_group").is_null()) return std::make_unique<Optimizer>(params, first);
  Options second = first;
  read_options(entry.at("second_group"), second);
  const std::vector<Tensor> last = {params.back()};
  params.pop_back();
  return std::make_unique<Optimizer>(
      std::vector<optim::ParamGroup<Options>>{{params, first}, {last, second}});
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Json& entry, std::vector<Tensor> params) {
  const std::string kind = entry.at("kind");
  if (kind == "SGD") return make_optimizer<optim::SGD, optim::SGDOptions>(entry, params);
  if (kind == "Adam") return make_optimizer<optim::Adam, optim::AdamOptions>(entry, params);
  return make_optimizer<optim::AdamW, optim::AdamWOptions>(entry, params);
}

TEST(GoldenOptim, optimizers_follow_pytorch_for_five_steps) {
  const File file("optim");
  for (const Json& entry : file.json("optimizers")) {
    const std::string dtype = entry.at("dtype"),
                      id = dtype + "/" + entry.at("id").get<std::string>();
    const Tolerance limit = dtype == "f64" ? Tolerance{1e-12, 1e-14} : Tolerance{1e-6, 1e-7};
    std::vector<Tensor> params;
    for (int i = 0; i < entry.at("tensors").get<int>(); ++i) {
      params.push_back(file.at(dtype + "/start." + std::to_string(i)).clone().set_requires_grad());
    }
    const auto optimizer = make_optimizer(entry, params);
    for (int step = 0; step < entry.at("steps").get<int>(); ++step) {
      for (size_t i = 0; i < params.size(); ++i) {
        const std::string at = std::to_string(i) + "." + std::to_string(step);
        params[i].set_grad(file.at(dtype + "/grad." + at));
      }
      optimizer->step();
      for (size_t i = 0; i < params.size(); ++i) {
        const std::string at = std::to_string(i) + "." + std::to_string(step);
        EXPECT_TRUE(near(params[i].detach(), file.at(id + "/" + at), limit))
            << id << " " << entry.at("options") << ": tensor.step " << at;
      }
    }
    for (const auto& [name, value] : optimizer->state_dict()) {
      for (const char* slot : {"momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}) {
        for (size_t i = 0; i < params.size(); ++i) {
          const std::string stored = id + "/" + slot + "." + std::to_string(i);
          if (name != "state." + std::to_string(i) + "." + slot) continue;
          EXPECT_TRUE(near(value, file.at(stored), limit)) << stored;
        }
      }
    }
  }
}

TEST(GoldenOptim, clipping_scales_as_pytorch_does) {
  const File file("optim");
  for (const Json& entry : file.json("clip")) {
    const Json& p = entry.at("norm_type");
    const double norm_type = p.is_object() ? INFINITY : p.get<double>();
    std::vector<Tensor> params;
    for (int i = 0; file.has("f64/start." + std::to_string(i)); ++i) {
      params.push_back(zeros_like(file.at("f64/start." + std::to_string(i))).set_requires_grad());
      params.back().set_grad(file.at("f64/grad." + std::to_string(i) + ".0").clone());
    }
    const double max_norm = entry.at("max_norm");
    if (norm_type == 3) {
      EXPECT_THROW(optim::clip_grad_norm_(params, max_norm, norm_type), Error);
      continue;
    }
    const double total = optim::clip_grad_norm_(params, max_norm, norm_type);
    EXPECT_NEAR(total / entry.at("total").get<double>(), 1, 1e-12) << entry;
    for (size_t i = 0; i < params.size(); ++i) {
      const std::string key = entry.at("id").get<std::string>() + "/" + std::to_string(i);
      EXPECT_TRUE(near(params[i].grad(), file.at(key), {1e-12, 0})) << key;
    }
  }
}

/// The schedule of a golden entry; an empty one for a variant that tarn does not have.
optim::Schedule make_schedule(const std::string& kind, const Json& o) {
  if (kind == "StepLR") return optim::step_lr(o.at("step_size"), o.at("gamma"));
  if (kind == "MultiStepLR") return optim::multi_step_lr(o.at("milestones"), o.at("gamma"));
  if (kind == "ExponentialLR") return optim::exponential_lr(o.at("gamma"));
  if (kind == "ConstantLR") return optim::constant_lr(o.at("factor"), o.at("total_iters"));
  if (kind == "LinearLR") {
    return optim::linear_lr(o.value("start_factor", 1.0 / 3), o.value("end_factor", 1.0),
                            o.value("total_iters", int64_t{5}));
  }
  if (kind == "PolynomialLR") {
    return optim::lambda_lr([total = o.at("total_iters").get<double>(),
                             power = o.at("power").get<double>()](int64_t t) {
      return std::pow(1 - std::min(static_cast<double>(t), total) / total, power);
    });
  }
  if (kind == "CosineAnnealingLR")
    return optim::cosine_annealing_lr(o.at("T_max"), o.value("eta_min", 0.0));
  if (kind == "CosineAnnealingWarmRestarts") {
    return optim::cosine_warm_restarts(o.at("T_0"), o.at("T_mult"), o.value("eta_min", 0.0));
  }
  if (kind == "OneCycleLR" && !o.contains("three_phase") && !o.contains("anneal_strategy")) {
    return optim::one_cycle_lr({.max_lr = o.at("max_lr"),
                                .total_steps = o.at("total_steps"),
                                .cycle_momentum = o.value("cycle_momentum", true)});
  }
  if (kind == "SequentialLR") {
    std::vector<optim::Schedule> parts;
    for (const Json& part : o.at("parts")) parts.push_back(make_schedule(part[0], part[1]));
    return optim::sequential(parts, o.at("milestones"));
  }
  return {};
}

TEST(GoldenOptim, schedules_give_the_rates_and_momenta_of_pytorch) {
  const File file("optim");
  for (const Json& entry : file.json("schedules")) {
    const std::string id = entry.at("id"), kind = entry.at("kind");
    const optim::Schedule schedule = make_schedule(kind, entry.at("options"));
    if (!schedule.lr) {
      EXPECT_EQ(kind, "OneCycleLR") << entry;
      std::cout << "not run: " << entry << "\n";
      continue;
    }
    const auto rates = file.at(id + "/lr").to_vector<double>();
    const auto momenta = file.at(id + "/momentum").to_vector<double>();
    optim::SGD sgd({zeros({1}).set_requires_grad()}, {.lr = entry.at("lr"), .momentum = 0.9});
    optim::Scheduler scheduler(sgd, schedule);
    for (size_t t = 0; t < rates.size(); ++t) {
      EXPECT_NEAR(sgd.lr(), rates[t], 1e-12) << entry << " at step " << t;
      EXPECT_NEAR(sgd.options().momentum, momenta[t], 1e-12) << entry << " at step " << t;
      scheduler.step();
    }
  }
}

}  // namespace
}  // namespace tarn::golden
