// cuda_placement_test.cpp - one network on several devices: gradients flow across them.
#include <algorithm>
#include <memory>

#include "gpu_tools.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/nn/linear.h"
#include "tarn/optim/adam.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/sgd.h"
#include "tarn/tests/tests_throws.h"

namespace tarn {
namespace {

class Net : public nn::Module {
 public:
  Tensor forward(const Tensor& x) override {
    const Tensor h = relu(first(x.to(first.weight.device())));
    const Tensor m = relu(middle(h.to(middle.weight.device())));
    return last((m.to(last.weight.device()) + h.to(last.weight.device())));  // over a cut, twice
  }
  nn::Linear first{this, "first", {.in = 6, .out = 16}};
  nn::Linear middle{this, "middle", {.in = 16, .out = 16}};
  nn::Linear last{this, "last", {.in = 16, .out = 3}};
};

std::vector<double> train(Net& net, bool adam) {
  std::unique_ptr<optim::Optimizer> optimizer;
  if (adam) {
    optimizer = std::make_unique<optim::AdamW>(net.parameters(), optim::AdamWOptions{.lr = 0.01});
  } else {
    optimizer = std::make_unique<optim::SGD>(net.parameters(),
                                             optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  }
  const Tensor x = sin(arange(9 * 6).to(DType::kF32)).view({9, 6});
  std::vector<double> all;
  for (int step = 0; step < 6; ++step) {
    optimizer->zero_grad();
    const Tensor y = net(x);
    mean(y * y).backward();
    all.push_back(optim::clip_grad_norm_(net.parameters(), 0.1));
    optimizer->step();
  }
  for (const Tensor& p : net.parameters()) {
    EXPECT_EQ(p.grad().device(), p.device());
    const auto values = p.to_vector<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(CudaPlacement, a_network_over_devices_trains_as_on_one) {
  TARN_NEEDS_GPU();
  std::vector<Device> devices = available_devices();
  ASSERT_GE(devices.size(), 2u);
  for (const bool adam : {false, true}) {
    manual_seed(1);
    Net whole;
    const TensorDict start = [&] {
      TensorDict copy;
      for (const auto& [name, t] : whole.state_dict()) copy.add(name, t.clone());
      return copy;
    }();
    const auto wanted = train(whole, adam);
    // Every way to lay three layers on the CPU and up to two GPUs.
    const auto n = std::min<size_t>(devices.size(), 3);
    for (size_t i = 0; i < n * n * n; ++i) {
      Net net;
      net.load_state_dict(start);
      net.first.to(devices[i % n]);
      net.middle.to(devices[i / n % n]);
      net.last.to(devices[i / n / n]);
      const auto ours = train(net, adam);
      for (size_t k = 0; k < wanted.size(); ++k) {
        ASSERT_NEAR(ours[k], wanted[k], 2e-5) << "adam " << adam << ", placement " << i;
      }
    }
  }
}

TEST(CudaPlacement, a_missing_move_is_an_error_that_names_both_devices) {
  TARN_NEEDS_GPU();
  Net net;
  net.middle.to(Device(DeviceType::kCUDA));
  const Tensor h = zeros({2, 16});
  EXPECT_THROWS_WITH(net.middle(h), DeviceError, "cuda:0");
}

}  // namespace
}  // namespace tarn
