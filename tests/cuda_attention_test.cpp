// cuda_attention_test.cpp - attention on the GPU against the CPU: several tiles, chunks, masks,
// groups, dtypes; and that two runs give the same bits.
#include <cmath>

#include "gpu_tools.h"
#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"

namespace tarn {
namespace {

using List = std::vector<Tensor>;

struct Problem {
  Shape q, k, v;
  AttentionOptions options{};
  DType dtype = DType::kF32;
};

/// Result and gradients on a device, in f64 on the CPU.
List run(const Problem& p, Device device) {
  Generator numbers(1), draws(2);
  List leaves;
  for (const Shape& s : {p.q, p.k, p.v}) {
    leaves.push_back(randn(s, {}, &numbers).to(p.dtype).to(device));
    leaves.back().set_requires_grad();
  }
  AttentionOptions options = p.options;
  options.generator = &draws;
  if (options.mask.defined()) options.mask = options.mask.to(device);
  const Tensor y = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], options);
  const Tensor g = randn(y.sizes(), {}, &numbers).to(p.dtype).to(device);
  List out{y};
  for (const Tensor& t : grad(List{y}, leaves, List{g})) out.push_back(t);
  for (Tensor& t : out) t = t.detach().to(kCPU).to(DType::kF64);
  return out;
}

void expect_agreement(const Problem& p, double tolerance) {
  const List gpu = run(p, kCuda), cpu = run(p, kCPU);
  for (size_t i = 0; i < gpu.size(); ++i) {
    const double scale = amax(abs(cpu[i])).item();
    EXPECT_LE(amax(abs(sub(gpu[i], cpu[i]))).item(), tolerance * scale) << "result " << i;
  }
}

TEST(CudaAttention, agrees_with_the_cpu_over_tiles_and_chunks) {
  TARN_NEEDS_GPU();
  expect_agreement({{1, 2, 70, 24}, {1, 2, 130, 24}, {1, 2, 130, 72}}, 1e-5);
  expect_agreement({{2, 1, 5, 130}, {2, 1, 65, 130}, {2, 1, 65, 3}}, 1e-5);
  expect_agreement({{1, 1, 64, 16}, {1, 1, 64, 16}, {1, 1, 64, 16}, {.causal = true}}, 1e-5);
  expect_agreement({{1, 1, 129, 16}, {1, 1, 67, 16}, {1, 1, 67, 16}, {.causal = true}}, 1e-5);
}

TEST(CudaAttention, agrees_with_the_cpu_in_every_dtype) {
  TARN_NEEDS_GPU();
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::kF64, 1e-12}, std::pair{DType::kF16, 4e-3},
        std::pair{DType::kBF16, 3e-2}}) {
    expect_agreement({{1, 2, 66, 8}, {1, 2, 70, 8}, {1, 2, 70, 8}, {.causal = true}, dtype},
                     tolerance);
  }
}

TEST(CudaAttention, agrees_with_the_cpu_with_dropout_masks_and_groups) {
  TARN_NEEDS_GPU();
  Generator generator(3);
  const Tensor additive = randn({2, 1, 1, 70}, {}, &generator);
  const Tensor allowed = gt(randn({66, 70}, {}, &generator), Scalar(0.5));
  const Shape q{2, 4, 66, 8}, k{2, 4, 70, 8}, grouped{2, 2, 70, 8};
  expect_agreement({q, k, k, {.mask = additive}}, 1e-5);
  expect_agreement({q, k, k, {.mask = allowed, .dropout = 0.3}}, 1e-5);
  expect_agreement({q, grouped, grouped, {.causal = true, .dropout = 0.3, .enable_gqa = true}},
                   1e-5);
}

TEST(CudaAttention, dropout_keeps_what_the_cpu_keeps_in_rows_of_any_length) {
  TARN_NEEDS_GPU();
  for (int64_t keys : {2, 3, 64, 65, 66, 67, 68}) {
    const Shape k{1, 2, keys, 4};
    expect_agreement({{1, 2, 67, 4}, k, k, {.dropout = 0.5}}, 1e-5);
  }
  expect_agreement({{1, 1, 5, 4}, {1, 1, 8, 4}, {1, 1, 8, 4}, {.dropout = 1}}, 1e-5);
}

TEST(CudaAttention, rows_without_keys_give_zero) {
  TARN_NEEDS_GPU();
  const Tensor mask = arange(3).view({3, 1}).to(DType::kBool);
  const List got = run({{1, 1, 3, 4}, {1, 1, 5, 4}, {1, 1, 5, 4}, {.mask = mask}}, kCuda);
  EXPECT_EQ(amax(abs(got[0].select(2, 0))).item(), 0);
  for (const Tensor& t : got) EXPECT_TRUE(all(isfinite(t)).item<bool>());
  expect_agreement({{1, 1, 3, 4}, {1, 1, 5, 4}, {1, 1, 5, 4}, {.mask = mask}}, 1e-5);
}

TEST(CudaAttention, two_runs_give_the_same_bits) {
  TARN_NEEDS_GPU();
  const Problem p{{1, 2, 70, 16}, {1, 2, 130, 16}, {1, 2, 130, 16}, {.causal = true}};
  const List a = run(p, kCuda), b = run(p, kCuda);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(equal(a[i], b[i])) << "result " << i;
}

}  // namespace
}  // namespace tarn
