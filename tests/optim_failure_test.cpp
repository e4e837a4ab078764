// optim_failure_test.cpp - steps that throw: what they leave, and that the next ones are right.
#include <algorithm>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/nn/module.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/sgd.h"

namespace tarn::optim {
namespace {

constexpr int64_t kMany =
    3 << 20;  // 12 MiB of f32: blocks of this size are not cut from larger ones
constexpr size_t kMiB = size_t{1} << 20;

/// While it lives only `bytes` more can be had.
class LimitedMemory {
 public:
  explicit LimitedMemory(size_t bytes) {
    empty_cache();
    set_memory_limit(static_cast<size_t>(memory_stats().reserved) + bytes);
  }
  ~LimitedMemory() { set_memory_limit(0); }
};

Tensor leaf(const Tensor& values) {
  Tensor p = values.detach();
  p.set_requires_grad();
  return p;
}

/// The value all elements share.
double value(const Tensor& x) {
  const std::vector<double> all = x.to_vector<double>();
  EXPECT_EQ(std::count(all.begin(), all.end(), all[0]), x.numel());
  return all[0];
}

struct Three : nn::Module {
  nn::Parameter a{this, "a", zeros({kMany})}, b{this, "b", zeros({kMany})},
      c{this, "c", zeros({kMany})};

  void set_grads() {
    for (Tensor& p : parameters()) p.set_grad(ones(p.sizes(), {.dtype = p.dtype()}));
  }
  void expect_values(double want, double tolerance = 0) {
    for (const Tensor& p : parameters()) EXPECT_NEAR(value(p), want, tolerance);
  }
};

TEST(OptimizerFailureTest, a_step_without_memory_for_its_state_changes_nothing) {
  Three net;
  SGD sgd(net.parameters(), {.lr = 1, .momentum = .5, .dampening = .5});
  net.set_grads();
  {
    const LimitedMemory room(18 * kMiB);  // for the state of one
    EXPECT_THROW(sgd.step(), OutOfMemoryError);
  }
  net.expect_values(0);
  for (const auto& [name, tensor] : sgd.state_dict()) EXPECT_NE(name.rfind("state.", 0), 0u);
  sgd.step();
  net.expect_values(-1);  // each buffer begins with the whole gradient
  sgd.step();
  net.expect_values(-2);  // 0.5 * 1 + 0.5 * 1
}

TEST(OptimizerFailureTest, steps_that_threw_are_not_counted) {
  Three net;
  Adam adam(net.parameters(), {.lr = 1});
  net.set_grads();
  {
    const LimitedMemory room(40 * kMiB);  // for the state of one and a half
    EXPECT_THROW(adam.step(), OutOfMemoryError);
    EXPECT_THROW(adam.step(), OutOfMemoryError);
  }
  for (int step = 1; step <= 2; ++step) {
    adam.step();
    net.expect_values(-step, 1e-5);  // a steady gradient of 1: lr per step
    EXPECT_EQ(adam.state_dict()["state.2.step"].item(), step);
  }
}

TEST(OptimizerFailureTest, gradients_of_a_step_that_threw_are_forgotten) {
  Tensor a = leaf(zeros({2, 2})), b = leaf(zeros({2048, 2048}).t());
  SGD sgd({a, b}, {.lr = 1});
  const auto set_grads = [&](double scale) {
    a.set_grad(full({2, 2}, scale));
    b.set_grad(full({2048, 2048}, 10 * scale));  // of another layout than b: it is copied
  };
  set_grads(1);
  sgd.step();
  {
    const LimitedMemory none(0);
    EXPECT_THROW(sgd.step(), OutOfMemoryError);
  }
  EXPECT_EQ(value(a), -1);
  set_grads(2);
  sgd.step();
  EXPECT_EQ(value(a), -3);
  EXPECT_EQ(value(b), -30);
}

TEST(OptimizerFailureTest, parameters_converted_without_memory_for_their_state_train_on) {
  Three net;
  SGD sgd(net.parameters(), {.lr = 1, .momentum = .5});
  net.set_grads();
  sgd.step();
  net.to(DType::kF64);
  {
    const LimitedMemory room(30 * kMiB);  // for one buffer of f64
    EXPECT_THROW(sgd.step(), OutOfMemoryError);
  }
  net.expect_values(-1);
  sgd.step();
  net.expect_values(-2.5);  // 0.5 * 1 + 1
  sgd.step();
  net.expect_values(-4.25);  // 0.5 * 1.5 + 1
}

/// p -= 1; group 1 fails while told to.
class Failing final : public Optimizer {
 public:
  Failing(const Tensor& first, const Tensor& second) : Optimizer({"slot"}, true) {
    add_group({first});
    add_group({second});
  }
  bool fails = true;
  int fresh = 0;  // of the batches that were updated

 private:
  void update(const Batch& batch, double) override {
    if (fails && batch.group == 1) throw std::runtime_error("a kernel failed");
    fresh += batch.fresh;
    for (const Tensor& p : batch.params) raw::sub_(p, ones(p.sizes()));
  }
  bool uses_slot(size_t, int slot) const override { return slot == 0; }
  double& lr_ref(size_t) override { return lr_; }
  void visit_options(size_t, OptionVisitor& visitor) override { visitor.number("lr", lr_); }

  double lr_ = 1;
};

TEST(OptimizerFailureTest, only_what_was_updated_before_a_kernel_failed_has_stepped) {
  Tensor a = leaf(zeros({2})), b = leaf(zeros({3}));
  Failing failing(a, b);
  a.set_grad(ones({2}));
  b.set_grad(ones({3}));
  EXPECT_THROW(failing.step(), std::runtime_error);
  EXPECT_EQ(value(a), -1);
  EXPECT_EQ(value(b), 0);
  EXPECT_EQ(failing.state_dict()["state.0.step"].item(), 1);
  EXPECT_FALSE(failing.state_dict().contains("state.1.slot"));
  failing.fails = false;
  failing.step();
  EXPECT_EQ(value(a), -2);
  EXPECT_EQ(value(b), -1);
  EXPECT_EQ(failing.state_dict()["state.0.step"].item(), 2);
  EXPECT_EQ(failing.state_dict()["state.1.step"].item(), 1);
  EXPECT_EQ(failing.fresh, 2);  // each once
}

}  // namespace
}  // namespace tarn::optim
