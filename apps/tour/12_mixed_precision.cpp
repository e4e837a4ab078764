// 12_mixed_precision.cpp - halves: what they can hold, what autocast does, why losses are scaled.
#include <cstdio>
#include <string>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/optim/scaler.h"
#include "tarn/optim/sgd.h"

using namespace tarn;

// 1. f16 has 11 bits and little range; bf16 has f32's range and 8 bits.
void what_halves_hold() {
  std::printf("%14s %14s %14s\n", "f32", "f16", "bf16");
  for (const double v : {1.001, 3e-8, 70000.0}) {
    const Tensor x = tensor({v}, {.dtype = DType::kF32});
    std::printf("%14g %14g %14g\n", x.item(), x.to(DType::kF16).item(), x.to(DType::kBF16).item());
  }
}

// 2. Under autocast each operation takes the dtype that suits it. The casts are recorded, so
// weights stay f32 and get f32 gradients.
void what_autocast_does() {
  Tensor w = randn({4, 8}).set_requires_grad();
  const Tensor x = randn({2, 8});
  Tensor loss;
  {
    const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
    const Tensor y = linear(x, w), z = relu(y), p = softmax(z, 1);
    loss = sum(p * p);
    const auto name = [](const Tensor& t) { return std::string(dtype_name(t.dtype())); };
    std::printf("\nlinear -> %s, relu -> %s, softmax -> %s, sum -> %s", name(y).c_str(),
                name(z).c_str(), name(p).c_str(), name(loss).c_str());
  }
  loss.backward();
  std::printf("; gradient of w: %s\n", dtype_name(w.grad().dtype()));
}

// 3. A mean over many items makes gradients small: 1e-8 is 0 in f16. Multiplied by 65536 on the way
// and divided at the end it survives. Too large a scale overflows; then the step is skipped.
void why_losses_are_scaled() {
  Tensor w = ones({1, 1}).set_requires_grad();
  optim::SGD sgd({w}, {.lr = 1});
  const auto forward = [&] {
    const AutocastGuard autocast(DeviceType::kCPU, DType::kF16);
    return linear(ones({1, 1}), w).to(DType::kF32).sum() * 1e-8;
  };
  forward().backward();
  std::printf("\ngradient without scaling  %g (it should be 1e-08)\n", w.grad().item());

  optim::GradScaler scaler({.init_scale = 0x1p44});
  for (bool stepped = false; !stepped;) {
    sgd.zero_grad();
    scaler.scale(forward()).backward();
    const double scale = scaler.get_scale();
    stepped = scaler.step(sgd);
    scaler.update();
    std::printf("scale %-12g gradient %g%s\n", scale, w.grad().item() / scale,
                stepped ? "" : "  step skipped");
  }
}

int main() {
  manual_seed(1);
  what_halves_hold();
  what_autocast_does();
  why_losses_are_scaled();
}
