// optim_convert_test.cpp - parameters that change their dtype between steps.
#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/nn/linear.h"
#include "tarn/optim/sgd.h"

namespace tarn::optim {
namespace {

TEST(OptimizerConvertTest, state_follows_parameters_that_are_converted) {
  nn::Linear net({.in = 1, .out = 1, .bias = false});
  net.weight.detach().fill_(1);
  SGD sgd(net.parameters(), {.lr = 1, .momentum = .5});
  net.weight.set_grad(ones({1, 1}));
  sgd.step();
  net.to(DType::kF64);
  sgd.step();
  EXPECT_NEAR(net.weight.item(), -1.5, 1e-6);  // 1 - 1 - (0.5 * 1 + 1)
  EXPECT_EQ(sgd.state_dict()["state.0.momentum_buffer"].dtype(), DType::kF64);
  net.to(DType::kBF16);
  sgd.step();
  EXPECT_NEAR(net.weight.item(), -3.25, 1e-6);  // -1.5 - (0.5 * 1.5 + 1)
  EXPECT_EQ(sgd.state_dict()["state.0.momentum_buffer"].dtype(), DType::kF32);
  EXPECT_EQ(sgd.state_dict()["state.0.master_param"].dtype(), DType::kF32);
}

// The first of a batch tells nothing about the others: each is looked at.
TEST(OptimizerConvertTest, one_of_several_parameters_may_be_converted) {
  for (const DType dtype : {DType::kF64, DType::kBF16, DType::kF16}) {
    nn::Linear first({.in = 3, .out = 2, .bias = false}),
        second({.in = 5, .out = 7, .bias = false});
    first.weight.detach().fill_(1);
    second.weight.detach().fill_(1);
    SGD sgd({first.weight, second.weight}, {.lr = 1, .momentum = .5});
    const auto step = [&] {
      for (nn::Linear* layer : {&first, &second}) {
        layer->weight.set_grad(ones(layer->weight.sizes(), {.dtype = layer->weight.dtype()}));
      }
      sgd.step();
    };
    step();
    second.to(dtype);
    for (const double want : {-1.5, -3.25}) {  // 1 - 1, then momentum 1.5 and 1.75
      step();
      for (const nn::Linear* layer : {&first, &second}) {
        for (const double value : layer->weight.to_vector<double>()) EXPECT_NEAR(value, want, 1e-6);
      }
    }
    const DType state = dtype == DType::kF64 ? dtype : DType::kF32;
    EXPECT_EQ(sgd.state_dict()["state.0.momentum_buffer"].dtype(), DType::kF32);
    EXPECT_EQ(sgd.state_dict()["state.1.momentum_buffer"].dtype(), state);
  }
}

// Each conversion brings new memory, whose writes are counted anew: what was loaded into it must
// not look like what was there before.
TEST(OptimizerConvertTest, weights_loaded_after_a_conversion_go_to_their_master) {
  for (const bool back : {false, true}) {
    nn::Linear net({.in = 1, .out = 1, .bias = false});
    net.weight.detach().fill_(1);
    net.to(DType::kBF16);
    SGD sgd(net.parameters(), {.lr = 1});
    const auto step = [&] {
      net.weight.set_grad(ones({1, 1}, {.dtype = net.weight.dtype()}));
      sgd.step();
    };
    step();
    EXPECT_EQ(net.weight.item(), 0);
    net.to(DType::kF32);
    if (back) net.to(DType::kBF16);
    net.load_state_dict({{"weight", full({1, 1}, 100.0)}});
    step();
    EXPECT_EQ(net.weight.item(), 99);
  }
}

TEST(OptimizerConvertTest, a_master_keeps_its_bits_through_a_conversion_and_back) {
  nn::Linear net({.in = 1, .out = 1, .bias = false});
  net.weight.detach().fill_(1);
  net.to(DType::kBF16);
  SGD sgd(net.parameters(), {.lr = 1.0 / 1024});
  for (int step = 0; step < 2; ++step) {
    net.to(DType::kF32);
    net.to(DType::kBF16);
    net.weight.set_grad(ones({1, 1}, {.dtype = DType::kBF16}));
    sgd.step();
  }
  EXPECT_EQ(sgd.state_dict()["state.0.master_param"].item(), 1 - 2.0 / 1024);
}

}  // namespace
}  // namespace tarn::optim
