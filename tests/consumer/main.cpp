// main.cpp - the smallest program that uses tarn from outside: a sum and its gradient.
#include <cstdio>

#include <tarn/tarn.h>

int main() {
  tarn::Tensor x = tarn::ones({2, 3});
  x.set_requires_grad();
  x.sum().backward();  // the gradient of a sum is one everywhere
  const tarn::Tensor grad = x.grad();
  std::printf("tarn works: [%d, %d] sum %g\n", static_cast<int>(grad.size(0)),
              static_cast<int>(grad.size(1)), static_cast<double>(grad.sum().item<float>()));
}
