// 14_finding_a_nan.cpp - a loss becomes NaN: which operation, in which module, at which index?
#include <cstdio>

#include "tarn/apps/tour/wrapped.h"
#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/error.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/nn/linear.h"
#include "tarn/optim/sgd.h"

using namespace tarn;

// Divides each row by its length. At a row of zeros the length is 0, where the slope of the root is
// infinite: thanks to the small number the forward is finite, but the backward is not.
struct Normalize : nn::Module {
  using Module::Module;
  bool logarithm = false;  // a second fault: entries are negative as well
  Tensor forward(const Tensor& x) override {
    const Tensor length = sqrt(sum(square(x), {1}, true));
    const Tensor y = x / (length + 1e-6);
    return logarithm ? log(y) : y;
  }
};

struct Net : nn::Module {
  nn::Linear embed{this, "embed", {.in = 4, .out = 8}};
  Normalize unit{this, "unit"};
  nn::Linear head{this, "head", {.in = 8, .out = 3}};
  Net() { embed.bias.detach().fill_(0); }
  Tensor forward(const Tensor& x) override { return head(unit(tanh(embed(x)))); }
};

Tensor loss_of(Net& net, const Tensor& x) {
  return cross_entropy(net(x), zeros({x.size(0)}, {.dtype = DType::kI64}));
}

// True if the step stopped with an error, which is printed.
bool stops(Net& net, const Tensor& x, const AnomalyOptions& options) {
  try {
    const AnomalyGuard anomaly(options);  // around forward and backward
    loss_of(net, x).backward();
  } catch (const AutogradError& error) {
    std::printf("    %s\n\n", wrapped(error.what(), 4, 92).c_str());
    return true;
  }
  return false;
}

int main() {
  manual_seed(3);
  Net net, fresh;
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  Tensor x = randn({5, 4});
  x[3].fill_(0);  // an empty example

  std::printf("without looking, the fault shows a step late, and everywhere:\n");
  for (int step = 0; step < 2; ++step) {
    sgd.zero_grad();
    const Tensor loss = loss_of(net, x);
    loss.backward();
    sgd.step();
    const auto bad = isnan(net.embed.weight.detach()).to(DType::kI64).sum().item<long long>();
    std::printf("    step %d: loss %.4f; afterwards %lld of %lld weights of embed are NaN\n", step,
                loss.item(), bad, static_cast<long long>(net.embed.weight.numel()));
  }

  std::printf("\nan AnomalyGuard names the operation whose backward made the first of them:\n");
  const bool backward = stops(fresh, x, {});
  std::printf("with .forward it looks at results as well; here at a logarithm of something < 0:\n");
  fresh.unit.logarithm = true;
  const bool forward = stops(fresh, x, {.forward = true});
  std::printf("Row 3 is the empty example. The cure is sqrt(sum + 1e-12), or to leave it out.\n");
  std::printf("tarn-gpt and tarn-resnet take --detect-anomaly.\n");
  return backward && forward ? 0 : 1;
}
