// optim_ema_test.cpp - moving averages: values, state, swapping, models that are converted.
#include <cmath>

#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/models/gpt.h"
#include "tarn/optim/ema.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/tests_throws.h"

namespace tarn::optim {
namespace {

using Values = std::vector<double>;

Tensor leaf(const Tensor& values) {
  Tensor p = values.clone();
  p.set_requires_grad();
  return p;
}

TEST(EmaTest, tied_weights_have_one_average_under_all_their_names) {
  const Tensor w = leaf(tensor({1, 2}));
  Ema ema({{"in", w}, {"out", w.detach()}}, {.decay = .5});
  w.detach().copy_(tensor({3, 4}));
  ema.update();
  const TensorDict state = ema.state_dict();
  for (const char* name : {"in", "out"}) {
    EXPECT_EQ(state[name].to_vector<double>(), (Values{2, 3})) << name;
  }
  ema.swap();
  EXPECT_EQ(w.to_vector<double>(), (Values{2, 3}));
  ema.swap();
  EXPECT_EQ(w.to_vector<double>(), (Values{3, 4}));
  ema.load_state_dict(state);
  EXPECT_EQ(ema.averages()["out"].to_vector<double>(), (Values{2, 3}));
}

TEST(EmaTest, averages_follow_the_formula_and_buffers_are_kept) {
  Tensor w = leaf(tensor({1, 2})), h = tensor({1}, {.dtype = DType::kF16});
  const Tensor count = tensor({5}, {.dtype = DType::kI64});
  Ema ema({{"w", w}, {"h", h}, {"count", count}}, {.decay = .75});
  w.detach().copy_(tensor({5, 6}));
  h.copy_(tensor({2}, {.dtype = DType::kF16}));
  count.fill_(6);
  ema.update();
  const TensorDict state = ema.state_dict();
  EXPECT_EQ(state["w"].to_vector<double>(), (Values{2, 3}));  // 1 + .25 * 4
  EXPECT_EQ(state["h"].to_vector<double>(), (Values{1.25}));
  EXPECT_EQ(state["h"].dtype(), DType::kF32);
  EXPECT_EQ(state["count"].item(), 6);
  EXPECT_EQ(state["ema_updates"].item(), 1);
  ema.swap();
  EXPECT_EQ(w.to_vector<double>(), (Values{2, 3}));
  ema.swap();
  EXPECT_EQ(w.to_vector<double>(), (Values{5, 6}));
  EXPECT_TRUE(w.requires_grad());
}

TEST(EmaTest, takes_what_modules_give_and_gives_what_they_take) {
  nn::Linear net({.in = 2, .out = 1});
  Ema ema(net.state_dict(), {.decay = 0});
  net.weight.detach().fill_(3);
  ema.update();
  net.weight.detach().fill_(5);
  EXPECT_TRUE(net.load_state_dict(ema.averages()).missing.empty());
  EXPECT_EQ(net.weight.to_vector<double>(), (Values{3, 3}));
}

TEST(EmaTest, follows_the_state_of_a_module_with_tied_weights_and_buffers_of_its_own) {
  nn::models::Gpt gpt({.vocab = 5, .block = 4, .layers = 1, .heads = 1, .size = 4});
  Ema ema(gpt.named_state(), {.decay = 0});
  gpt.to(DType::kF64);
  ema.update();
  const nn::LoadReport report = gpt.load_state_dict(ema.averages());
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_EQ(ema.averages()["lm_head.weight"].dtype(), DType::kF64);
}

TEST(EmaTest, warmup_state_and_errors) {
  const Tensor w = ones({1});
  Ema ema({{"w", w}}, {.decay = .99, .warmup = true});
  w.fill_(2);
  ema.update();  // decay min(.99, 2 / 11)
  EXPECT_NEAR(ema.state_dict()["w"].item(), 1 + 9.0 / 11, 1e-6);
  Ema other({{"w", w}}, {.decay = .99, .warmup = true});
  TensorDict saved;
  for (const auto& [name, t] : ema.state_dict()) saved.add(name, t.clone());
  other.load_state_dict(saved);
  EXPECT_EQ(other.updates(), 1);
  EXPECT_EQ(other.state_dict()["w"].item(), ema.state_dict()["w"].item());
  EXPECT_THROWS_WITH(other.load_state_dict({}), ValueError, "Ema: the state must have 'w'=[1] f32");
  const TensorDict bare{{"w", full({1}, 7.0)}};
  EXPECT_THROWS_WITH(other.load_state_dict(bare), ValueError,
                     "Ema: the state must have 'ema_updates', one number; got none");
  EXPECT_NE(other.state_dict()["w"].item(), 7) << "nothing was changed";
  EXPECT_THROWS_WITH(Ema(TensorDict{{"w", w}}, {.decay = 2}), ValueError,
                     "decay must be in [0, 1]");
  EXPECT_THROWS_WITH(Ema(TensorDict{{"w", Tensor()}}), ValueError, "tensor 'w' is undefined");
}

/// A weight [1, 1] that begins as 0, and its average with decay 1/2.
struct Averaged {
  nn::Linear net{{.in = 1, .out = 1, .bias = false}};
  Ema ema = made();

  Ema made() {
    set(0);
    return Ema({{"w", net.weight}}, {.decay = .5});
  }
  void set(double value) { net.weight.detach().fill_(value); }
  Tensor average() const { return ema.state_dict()["w"]; }
};

TEST(EmaTest, averages_follow_a_module_that_is_converted) {
  Averaged m;
  m.net.to(DType::kBF16);
  m.set(1);
  m.ema.update();
  EXPECT_EQ(m.average().item(), .5);
  EXPECT_EQ(m.average().dtype(), DType::kF32);
  m.net.to(DType::kF64);
  m.set(1);
  m.ema.update();
  EXPECT_EQ(m.average().item(), .75);
  EXPECT_EQ(m.average().dtype(), DType::kF64);
  m.net.to(DType::kF32);
  m.ema.swap();
  EXPECT_EQ(m.net.weight.item(), .75);
  EXPECT_EQ(m.average().dtype(), DType::kF32);
  m.ema.swap();
  EXPECT_EQ(m.net.weight.item(), 1);
}

TEST(EmaTest, averages_follow_a_module_to_other_devices) {
  for (const Device device : available_devices()) {
    SCOPED_TRACE(device.str());
    Averaged m;
    m.net.to(device);
    m.set(1);
    m.ema.update();
    EXPECT_EQ(m.average().device(), device);
    EXPECT_EQ(m.average().item(), .5);
    m.net.to(kCPU);
    m.ema.swap();
    EXPECT_EQ(m.net.weight.item(), .5);
  }
}

TEST(EmaTest, tensors_may_be_on_several_devices) {
  std::vector<Device> devices = available_devices();
  devices.push_back(devices.front());
  TensorDict tensors;
  for (size_t i = 0; i < devices.size(); ++i) {
    tensors.add(std::to_string(i), zeros({3}, {.device = devices[i]}));
  }
  Ema ema(tensors, {.decay = .5});
  for (auto& [name, x] : tensors) x.fill_(static_cast<double>(std::stoi(name)));
  ema.update();
  for (const auto& [name, x] : tensors) {
    const double want = std::stoi(name) / 2.0;
    EXPECT_EQ(ema.state_dict()[name].to_vector<double>(), (Values{want, want, want}));
  }
}

TEST(EmaTest, averages_of_halves_survive_a_swap_bit_for_bit) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Tensor p = leaf(tensor({1, 2, NAN}, {.dtype = dtype}));
    Ema ema({{"p", p}}, {.decay = .99});
    p.detach().fill_(3);
    ema.update();
    const Values before = ema.state_dict()["p"].to_vector<double>();
    EXPECT_NEAR(before[0], 1.02, 1e-6);  // neither half holds that
    for (int evaluation = 0; evaluation < 2; ++evaluation) {
      ema.swap();
      EXPECT_EQ(p.to_vector<double>()[0], tensor({before[0]}, {.dtype = dtype}).item());
      EXPECT_EQ(ema.state_dict()["p"].to_vector<double>()[0], 3);
      ema.swap();
      const Values after = ema.state_dict()["p"].to_vector<double>();
      EXPECT_EQ(after[0], before[0]);
      EXPECT_EQ(after[1], before[1]);
      EXPECT_TRUE(std::isnan(after[2]));
      EXPECT_EQ(p.to_vector<double>(), (Values{3, 3, 3}));
    }
  }
}

TEST(EmaTest, what_is_written_to_a_swapped_model_goes_to_the_averages) {
  Tensor p = leaf(tensor({1, 1}, {.dtype = DType::kBF16}));
  Ema ema({{"p", p}}, {.decay = .99});
  p.detach().fill_(2);
  ema.update();
  const double average = ema.state_dict()["p"].to_vector<double>()[0];
  ema.swap();
  p.detach().narrow(0, 1, 1).fill_(5);
  ema.swap();
  EXPECT_EQ(ema.state_dict()["p"].to_vector<double>(), (Values{average, 5}));
}

}  // namespace
}  // namespace tarn::optim
