// 24_model_parallel.cpp - a network that is split over two devices; gradients cross the cut.
//
// On a machine with two GPUs (or in an emulated build with TARN_EMU_DEVICES=2) the halves are on
// cuda:0 and cuda:1; with one GPU the second is on the CPU; without, both are.
#include <cmath>
#include <cstdio>
#include <vector>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/nn/models/resnet.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/sgd.h"

using namespace tarn;
using nn::models::CifarResNet;

namespace {

std::vector<Device> two_devices() {
  std::vector<Device> devices;
  for (const Device d : available_devices()) {
    if (!d.is_cpu()) devices.push_back(d);
  }
  devices.resize(2, kCPU);  // what is missing is the CPU
  return devices;
}

// Where the last stage and the classifier live is all that has to be said: their weights move
// there, and whatever reaches the stage follows. `to` is recorded, so gradients come back through
// it.
void split(CifarResNet& net, Device first, Device second) {
  net.to(first);
  net.layer3.to(second);
  net.linear.to(second);
  net.layer3.register_forward_pre_hook(
      [second](nn::Module&, const Tensor& x) { return x.to(second); });
}

std::vector<double> train(CifarResNet& net, Device in, Device out) {
  const Tensor x = sin(arange(8 * 3 * 8 * 8).to(DType::kF32)).view({8, 3, 8, 8}).to(in);
  const Tensor y = arange(8).to(out);  // targets are where the logits will be
  optim::SGD sgd(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    sgd.zero_grad();
    const Tensor loss = cross_entropy(net(x), y);
    loss.backward();
    optim::clip_grad_norm_(net.parameters(), 1);  // one norm over both devices
    sgd.step();
    losses.push_back(loss.item());
  }
  return losses;
}

}  // namespace

int main() {
  const std::vector<Device> devices = two_devices();
  manual_seed(0);
  CifarResNet whole({.depth = 8}), halves({.depth = 8});
  halves.load_state_dict(whole.state_dict());
  split(halves, devices[0], devices[1]);
  std::printf(
      "stem, layer1, layer2 on %s;\nlayer3, linear on %s (%lld of %lld parameters)\n",
      devices[0].str().c_str(), devices[1].str().c_str(),
      static_cast<long long>(halves.layer3.num_parameters() + halves.linear.num_parameters()),
      static_cast<long long>(halves.num_parameters()));
  const std::vector<double> one = train(whole, kCPU, kCPU);
  const std::vector<double> two = train(halves, devices[0], devices[1]);
  double difference = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    std::printf("step %zu  loss whole %.5f  split %.5f\n", i, one[i], two[i]);
    difference = std::max(difference, std::abs(one[i] - two[i]));
  }
  std::printf("largest difference %.1e\n", difference);
  return difference < 1e-3 ? 0 : 1;
}
