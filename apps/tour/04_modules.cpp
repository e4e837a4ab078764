// 04_modules.cpp - layers and models are plain classes; declaring a member registers it.
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "tarn/apps/tour/wrapped.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/random.h"
#include "tarn/core/serialize.h"
#include "tarn/nn/conv.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/norm.h"

using namespace tarn;

// A residual block: what it adds is learnt, the input itself goes through untouched.
class Block : public nn::Module {
 public:
  using Module::Module;
  nn::Conv2d conv{this, "conv", {.in = 8, .out = 8, .kernel = 3, .padding = 1, .bias = false}};
  nn::BatchNorm2d bn{this, "bn", {.features = 8}};
  Tensor forward(const Tensor& x) override { return relu(bn(conv(x)) + x); }
};

class Net : public nn::Module {
 public:
  nn::Conv2d stem{this, "stem", {.in = 1, .out = 8, .kernel = 3, .padding = 1}};
  Block block{this, "block"};
  nn::Linear head{this, "head", {.in = 8, .out = 10}};
  Tensor forward(const Tensor& x) override {
    const Tensor features = block(relu(stem(x)));  // [N, 8, H, W]
    return head(features.mean({2, 3}));            // [N, 10]
  }
};

int main() {
  manual_seed(0);
  Net net;
  std::cout << net << "\n\n";

  // Names follow the declarations, as in PyTorch.
  for (const auto& [name, tensor] : net.named_parameters()) {
    std::cout << name << " " << tensor.sizes() << "\n";
  }
  std::cout << net.num_parameters() << " parameters\n\n";

  // Batch norm uses the batch while training and its running statistics afterwards.
  const Tensor x = randn({4, 1, 12, 12});
  std::cout << "one image alone, training off: " << net.eval()(x.narrow(0, 0, 1)).sizes() << "\n";

  // A state dict is names and tensors; safetensors files hold exactly that.
  const std::string file = std::filesystem::temp_directory_path() / "tarn-tour-04.safetensors";
  save_safetensors(file, net.state_dict());
  Net other;
  other.eval();
  other.load_state_dict(load_safetensors(file).tensors);
  std::remove(file.c_str());
  std::cout << "the same weights give the same result: " << std::boolalpha
            << equal(net(x), other(x)) << "\n\n";

  // What does not fit is listed, and nothing is changed.
  TensorDict wrong{{"stem.weight", zeros({8, 1, 5, 5})}, {"tail.weight", zeros({1})}};
  try {
    other.load_state_dict(wrong);
  } catch (const Error& e) {
    std::cout << wrapped(e.what()) << "\n";
  }
  return 0;
}
