// core_attention_test.cpp - fused attention: agreement with the plain form, masked rows, memory,
// layouts and threads.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/factory.h"
#include "tarn/core/parallel.h"

namespace tarn {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Qkv {
  Tensor q, k, v;
};

Qkv random_qkv(const Shape& q, const Shape& k, const Shape& v, uint64_t seed = 1) {
  Generator generator(seed);
  Qkv x{randn(q, {}, &generator), randn(k, {}, &generator), randn(v, {}, &generator)};
  for (Tensor* t : {&x.q, &x.k, &x.v}) t->set_requires_grad();
  return x;
}

/// softmax(q k^T / sqrt(D) + mask) v in separate operations; mask additive or undefined.
Tensor plain(const Qkv& x, bool causal, const Tensor& mask = {}) {
  Tensor scores =
      matmul(x.q, transpose(x.k, -2, -1)) * (1 / std::sqrt(static_cast<double>(x.q.size(-1))));
  if (mask.defined()) scores = scores + mask;
  if (causal) {
    scores = masked_fill(scores, eq(tril(ones({x.q.size(-2), x.k.size(-2)})), Scalar(0)), -kInf);
  }
  return matmul(softmax(scores, -1), x.v);
}

using List = std::vector<Tensor>;

double worst(const Tensor& a, const Tensor& b) {
  return amax(abs(sub(a, b))).item();
}

void expect_agreement(const Qkv& x, bool causal, const Tensor& mask = {}) {
  const Tensor fused =
      scaled_dot_product_attention(x.q, x.k, x.v, {.mask = mask, .causal = causal});
  const Tensor reference = plain(x, causal, mask);
  EXPECT_LT(worst(fused, reference), 2e-5);
  Generator generator(5);
  const Tensor g = randn(fused.sizes(), {}, &generator);
  const auto got = grad(List{fused}, List{x.q, x.k, x.v}, List{g});
  const auto want = grad(List{reference}, List{x.q, x.k, x.v}, List{g});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LT(worst(got[i], want[i]), 1e-4 * std::max(1.0, amax(abs(want[i])).item()));
  }
}

TEST(Attention, fused_and_plain_agree_where_blocks_and_tiles_end) {
  for (const int64_t queries : {1, 55, 56, 57, 130}) {
    for (const int64_t keys : {1, 31, 256, 257, 300}) {
      SCOPED_TRACE(testing::Message() << queries << " queries, " << keys << " keys");
      expect_agreement(random_qkv({2, 2, queries, 24}, {2, 2, keys, 24}, {2, 2, keys, 40}), false);
    }
  }
}

TEST(Attention, fused_and_plain_agree_with_masks) {
  const Qkv x = random_qkv({2, 3, 300, 16}, {2, 3, 300, 16}, {2, 3, 300, 16});
  expect_agreement(x, true);
  Generator generator(9);
  expect_agreement(x, false, randn({2, 1, 1, 300}, {}, &generator));
  expect_agreement(x, true, randn({300, 300}, {}, &generator));
}

TEST(Attention, a_row_without_keys_gives_zero_and_finite_gradients) {
  const Qkv x = random_qkv({1, 2, 3, 8}, {1, 2, 5, 8}, {1, 2, 5, 8});
  const Tensor allowed = tensor({0, 1, 0}, {3, 1}).to(DType::kBool);
  const Tensor additive = tensor({-kInf, 0, -kInf}, {3, 1});
  for (const Tensor& mask : {allowed, additive}) {
    const Tensor y = scaled_dot_product_attention(x.q, x.k, x.v, {.mask = mask});
    EXPECT_EQ(amax(abs(y.select(2, 0))).item(), 0);
    EXPECT_EQ(amax(abs(y.select(2, 2))).item(), 0);
    EXPECT_GT(amax(abs(y.select(2, 1))).item(), 0);
    const auto grads = grad(List{y.sum()}, List{x.q, x.k, x.v}, {}, {.create_graph = true});
    for (const Tensor& g : grads) EXPECT_TRUE(all(isfinite(g)).item<bool>());
    EXPECT_EQ(amax(abs(grads[0].select(2, 0))).item(), 0);
  }
}

TEST(Attention, scores_too_large_for_exp_are_no_trouble) {
  const Tensor q = full({1, 1, 2, 4}, 60), k = full({1, 1, 70, 4}, 60);
  const Tensor y = scaled_dot_product_attention(q, k, ones({1, 1, 70, 4}));
  EXPECT_NEAR(y.sum().item(), 8, 1e-4);  // 2 queries x 4 columns of a mean of ones
}

TEST(Attention, memory_grows_linearly_with_time) {
  const auto peak = [](int64_t time) {
    const Qkv x = random_qkv({1, 1, time, 16}, {1, 1, time, 16}, {1, 1, time, 16});
    reset_peak_memory();
    const auto before = memory_stats().allocated;
    scaled_dot_product_attention(x.q, x.k, x.v, {.causal = true}).sum().backward();
    return static_cast<double>(memory_stats().peak_allocated - before);
  };
  EXPECT_LT(peak(4096), 2.5 * peak(2048));
  EXPECT_LT(peak(4096), 4096.0 * 4096.0);  // bytes: a quarter of one matrix of scores
}

TEST(Attention, results_do_not_depend_on_the_number_of_threads) {
  const int threads = num_threads();
  std::vector<std::vector<float>> runs;
  for (const int n : {1, 2, 5}) {
    set_num_threads(n);
    const Qkv x = random_qkv({2, 2, 200, 32}, {2, 2, 300, 32}, {2, 2, 300, 32});
    const Tensor y = scaled_dot_product_attention(x.q, x.k, x.v);
    y.sum().backward();
    runs.push_back(
        cat({y.flatten(), x.q.grad().flatten(), x.k.grad().flatten(), x.v.grad().flatten()})
            .to_vector<float>());
  }
  set_num_threads(threads);
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
}

TEST(Attention, no_time_at_all_has_gradients_of_any_order) {
  const Tensor qkv = zeros({2, 0, 24}).set_requires_grad();
  const Tensor mask = ones({1, 1, 1, 0}, {.dtype = DType::kBool});
  const Tensor y = scaled_dot_product_attention_qkv(qkv, 2, {.mask = mask});
  EXPECT_EQ(grad(y.sum(), qkv, {}, {.create_graph = true}).sizes(), qkv.sizes());
}

TEST(Attention, the_result_follows_the_queries_in_memory) {
  const Tensor x = zeros({2, 5, 3, 4});  // [B, T, H, D]
  const Tensor heads = transpose(x, 1, 2);
  const Tensor y = scaled_dot_product_attention(heads, heads, heads);
  EXPECT_TRUE(transpose(y, 1, 2).is_contiguous());
  const Tensor z = heads.contiguous();
  EXPECT_TRUE(scaled_dot_product_attention(z, z, z).is_contiguous());
}

TEST(Attention, dropout_is_the_same_in_the_packed_and_the_plain_call) {
  Generator a(3), b(3), c(4);
  const Tensor qkv = randn({2, 6, 24}, {}, &c);
  const auto part = [&](int64_t i) {
    return transpose(qkv.narrow(2, 8 * i, 8).view({2, 6, 2, 4}), 1, 2);
  };
  const Tensor packed = scaled_dot_product_attention_qkv(qkv, 2, {.dropout = 0.5, .generator = &a});
  const Tensor y =
      scaled_dot_product_attention(part(0), part(1), part(2), {.dropout = 0.5, .generator = &b});
  EXPECT_EQ(packed.to_vector<float>(), reshape(transpose(y, 1, 2), {2, 6, 8}).to_vector<float>());
  EXPECT_EQ(a.state().offset, b.state().offset);
}

}  // namespace
}  // namespace tarn
