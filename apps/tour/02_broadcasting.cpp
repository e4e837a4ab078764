// 02_broadcasting.cpp - operations on tensors of different sizes, and what that does to gradients.
#include <iostream>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

using namespace tarn;

int main() {
  // Sizes are compared from the right. Equal sizes match, a 1 is stretched, a missing one counts
  // as 1. Nothing is copied: the stretched dimension is walked with stride 0.
  const Tensor rows = tensor({0, 10, 20}, {3, 1});
  const Tensor columns = tensor({1, 2, 3, 4});
  std::cout << "[3, 1] + [4] gives " << (rows + columns) << "\n\n";

  // Which sizes go together, and the message when they do not.
  std::cout << "[2, 1, 4] with [3, 1] gives " << broadcast_shapes("add", {2, 1, 4}, {3, 1}) << "\n";
  try {
    zeros({4, 3}) + zeros({4});
  } catch (const ShapeError& e) {
    std::cout << e.what() << "\n";
  }
  // ... and the usual cure: say which dimension is meant.
  const Tensor per_row = tensor({1, 2, 3, 4});
  std::cout << "[4, 3] + [4, 1]: sizes " << (zeros({4, 3}) + per_row.unsqueeze(1)).sizes()
            << "\n\n";

  // A value that was used n times gets n gradients, added up: the backward of stretching is a sum.
  Tensor bias = zeros({4});
  bias.set_requires_grad();
  const Tensor batch = ones({3, 4});
  (batch + bias).sum().backward();
  std::cout << "a bias used by 3 rows: gradient " << bias.grad() << "\n";

  // Numbers take the tensor's dtype; two tensors take the wider one.
  const Tensor i = arange(3);
  std::cout << "i64 * 2 is " << (i * 2).dtype() << ", i64 * 0.5 is " << (i * 0.5).dtype()
            << ", f32 + f64 is " << (zeros({3}) + zeros({3}, {.dtype = DType::kF64})).dtype()
            << ", i64 / i64 is " << (i / i).dtype() << "\n";
  return 0;
}
