// 13_activation_checkpointing.cpp - memory against time: keep less in forward, compute it again.
#include <chrono>
#include <cstdio>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/recompute.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"

using namespace tarn;

constexpr int kBlocks = 12;
constexpr int64_t kRows = 512, kWidth = 256;

// y = x + W2 gelu(W1 x), and dropout, as in a Transformer. Keeps some ten times its input.
struct Block {
  Tensor w1 = (randn({4 * kWidth, kWidth}) * 0.05).detach().set_requires_grad();
  Tensor w2 = (randn({kWidth, 4 * kWidth}) * 0.02).detach().set_requires_grad();
  Tensor operator()(const Tensor& x) const {
    return x + dropout(linear(gelu(linear(layer_norm(x, {kWidth}), w1)), w2), 0.1, true);
  }
};

void step(std::vector<Block>& blocks, const Tensor& x, bool checkpointed) {
  manual_seed(7);
  reset_peak_memory();
  const int64_t before = memory_stats().allocated;
  const auto start = std::chrono::steady_clock::now();
  Tensor y = x;
  for (const Block& block : blocks) y = checkpointed ? checkpoint(block, y) : block(y);
  mean(square(y)).backward();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  double sum_of_gradients = 0;
  for (Block& block : blocks) {
    sum_of_gradients += block.w1.grad().sum().item() + block.w2.grad().sum().item();
    block.w1.zero_grad();
    block.w2.zero_grad();
  }
  std::printf("%-14s %7.1f MiB %8.1f ms   sum of gradients %.17g\n",
              checkpointed ? "checkpointed" : "plain",
              static_cast<double>(memory_stats().peak_allocated - before) / (1 << 20), took.count(),
              sum_of_gradients);
}

int main() {
  manual_seed(1);
  std::vector<Block> blocks(kBlocks);
  const Tensor x = randn({kRows, kWidth});
  step(blocks, x, false);  // warm-up: memory is touched for the first time
  std::printf("the same gradients, dropout and all; 24 MiB are the gradients themselves:\n");
  step(blocks, x, false);
  step(blocks, x, true);
}
