// 09_attention.cpp - attention from scratch: every token asks, and takes a mean of what is
// answered.
#include <cmath>
#include <cstdio>
#include <limits>

#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"

using namespace tarn;

constexpr int64_t kHeads = 4, kWidth = 32;  // of a head

// Each of T queries is compared with each of T keys: scores [.., T, T]. Those of later tokens
// become -inf, since a model that writes cannot read ahead; softmax makes shares of them that sum
// to 1.
Tensor shares(const Tensor& q, const Tensor& k) {
  const int64_t time = q.size(-2);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));  // keeps scores about 1
  const Tensor scores = matmul(q, k.transpose(-2, -1)) * scale;
  const Tensor later = triu(ones({time, time}), 1).to(DType::kBool);
  return softmax(masked_fill(scores, later, -std::numeric_limits<double>::infinity()), -1);
}

// A token's result is the mean of all values, each with its share.
Tensor by_hand(const Tensor& q, const Tensor& k, const Tensor& v) {
  return matmul(shares(q, k), v);
}

// The same in tiles: a block of scores is made, used and forgotten, forward and backward.
Tensor fused(const Tensor& q, const Tensor& k, const Tensor& v) {
  return scaled_dot_product_attention(q, k, v, {.causal = true});
}

struct Result {
  Tensor y, gradient;
  double mib;  // at most, over what was there before
};

template <class Attention>
Result run(const Attention& attention, int64_t time) {
  manual_seed(1);
  const auto draw = [&] { return randn({1, kHeads, time, kWidth}).set_requires_grad(); };
  const Tensor q = draw(), k = draw(), v = draw();
  reset_peak_memory();
  const int64_t before = memory_stats().allocated;
  const Tensor y = attention(q, k, v);
  sum(square(y)).backward();
  const auto extra = static_cast<double>(memory_stats().peak_allocated - before);
  return {y.detach(), q.grad(), extra / (1 << 20)};
}

double difference(const Tensor& a, const Tensor& b) {
  return amax(abs(a - b)).item();
}

int main() {
  manual_seed(3);
  const Tensor q = randn({5, 8}), k = randn({5, 8});
  std::printf("shares of five tokens: a row asks, a column answers\n");
  for (int64_t i = 0; i < 5; ++i) {
    for (const float share : shares(q, k)[i].to_vector<float>()) std::printf("  %.3f", share);
    std::printf("   sum %.3f\n", shares(q, k)[i].sum().item());
  }
  std::printf("\n%6s %14s %10s %18s %18s\n", "tokens", "by hand, MiB", "fused, MiB",
              "results differ by", "gradients differ by");
  double worst = 0;
  for (int64_t time = 128; time <= 1024; time *= 2) {
    const Result a = run(by_hand, time), b = run(fused, time);
    const double y = difference(a.y, b.y), gradient = difference(a.gradient, b.gradient);
    std::printf("%6lld %14.2f %10.2f %18.1e %18.1e\n", static_cast<long long>(time), a.mib, b.mib,
                y, gradient);
    worst = std::max({worst, y, gradient});
  }
  std::printf("twice the tokens: four times the memory by hand, twice the memory fused\n");
  return worst < 1e-4 ? 0 : 1;
}
