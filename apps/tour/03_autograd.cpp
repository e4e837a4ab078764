// 03_autograd.cpp - the chain rule by hand, then the same by the tape.
#include <cmath>
#include <iostream>

#include "tarn/apps/tour/wrapped.h"
#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"

using namespace tarn;

int main() {
  // f(w) = (sigmoid(w x + b) - t)^2 at x = 2, t = 1.
  const double x = 2, t = 1, w0 = -0.5, b0 = 0.3;

  // By hand: forward, keeping what the backward needs ...
  const double z = w0 * x + b0;
  const double s = 1 / (1 + std::exp(-z));
  // ... then backwards, from the loss to the parameters, one derivative at a time.
  const double ds = 2 * (s - t);
  const double dz = ds * s * (1 - s);
  std::cout << "by hand: dw = " << dz * x << ", db = " << dz << "\n";

  // By the tape: every operation on a tensor that requires grad records a node with its inputs and
  // the formula of its derivative. backward() walks the nodes from the last to the first.
  Tensor w = tensor({w0}, {.dtype = DType::kF64}), b = tensor({b0}, {.dtype = DType::kF64});
  w.set_requires_grad();
  b.set_requires_grad();
  const Tensor loss = square(sigmoid(w * x + b) - t).sum();
  std::cout << "recorded last: " << loss.grad_fn_name() << "\n";
  loss.backward();
  std::cout << "by tape: dw = " << w.grad().item() << ", db = " << b.grad().item() << "\n\n";

  // Gradients add up until they are cleared. The tape itself is gone after backward.
  square(sigmoid(w * x + b) - t).sum().backward();
  std::cout << "a second backward adds: dw = " << w.grad().item() << "\n";
  w.zero_grad();
  std::cout << "after zero_grad the gradient is " << (w.grad().defined() ? "there" : "absent")
            << "\n";

  // Nothing is recorded where no gradient is wanted.
  {
    const NoGradGuard no_grad;
    std::cout << "under no_grad, w * x requires grad: " << std::boolalpha << (w * x).requires_grad()
              << "\n\n";
  }

  // Derivatives are operations too: with create_graph they can be differentiated again.
  Tensor v = tensor({3}, {.dtype = DType::kF64});
  v.set_requires_grad();
  const Tensor cube = v * v * v;
  const Tensor first = grad({&cube, 1}, {&v, 1}, {}, {.create_graph = true})[0];
  const Tensor second = grad({&first, 1}, {&v, 1})[0];
  std::cout << "v^3 at 3: " << cube.item() << ", first derivative " << first.item() << ", second "
            << second.item() << "\n";

  // What was saved for the backward may not be changed before it.
  Tensor u = tensor({1, 2, 3}) * 1;
  const Tensor p = tensor({1, 1, 1}).set_requires_grad();
  const Tensor product = (p * u).sum();
  u.fill_(0);
  try {
    product.backward();
  } catch (const AutogradError& e) {
    std::cout << wrapped(e.what()) << "\n";
  }
  return 0;
}
