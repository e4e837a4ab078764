// cuda_blas_test.cpp - where cuBLASLt cannot or will not, the plain product and a kernel do.
#include <string>
#include <tuple>
#include <vector>

#include "gpu_tools.h"
#include "tests_throws.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/raw_matmul.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#endif

namespace tarn {
namespace {

#if defined(TARN_CUDA_EMU)

constexpr int kAllocFailed = 3, kInvalidValue = 7, kNotSupported = 15;  // see cublasStatus_t

/// x w^T + bias, where all is 1: [8, columns] of 17.
std::vector<float> product(int64_t columns, const Tensor& bias) {
  const Tensor x = ones({8, 16}, {.device = kCuda}), w = ones({columns, 16}, {.device = kCuda});
  return linear(x, w, bias).to_vector<float>();
}

class CudaBlasCalls : public testing::Test {
 protected:
  void SetUp() override {
    TARN_NEEDS_GPU();
    const uint64_t before = emu::call_count("cublasLtMatmul");
    product(9, ones({9}, {.device = kCuda}));
    if (emu::call_count("cublasLtMatmul") == before) GTEST_SKIP() << "no cuBLAS in this build";
  }
  void TearDown() override { emu::clear_failures(); }
};

std::vector<float> seventeens(int64_t columns) {
  return std::vector<float>(static_cast<size_t>(8 * columns), 17.0f);
}

TEST_F(CudaBlasCalls, a_bias_that_wide_loads_cannot_read_is_a_kernels) {
  const Tensor bias = ones({41}, {.device = kCuda});
  const uint64_t before = emu::call_count("cublasLtMatmul");
  EXPECT_EQ(product(40, bias.narrow(0, 1, 40)), seventeens(40));
  EXPECT_EQ(emu::call_count("cublasLtMatmul"), before);
  EXPECT_EQ(product(37, bias.narrow(0, 4, 37)), seventeens(37));
  EXPECT_EQ(emu::call_count("cublasLtMatmul"), before + 1);
}

TEST_F(CudaBlasCalls, a_product_that_lt_finds_invalid_or_cannot_run_is_a_plain_one) {
  const Tensor bias = ones({64}, {.device = kCuda});
  for (const auto& [call, code, columns] :
       {std::tuple("cublasLtMatmulAlgoGetHeuristic", kInvalidValue, int64_t{21}),
        std::tuple("cublasLtMatmul", kNotSupported, int64_t{22})}) {
    emu::fail_call(call, 1, code);
    const uint64_t plain = emu::call_count("cublasGemmEx");
    for (int i : {1, 2}) {
      EXPECT_EQ(product(columns, bias.narrow(0, 0, columns)), seventeens(columns)) << call;
      EXPECT_EQ(emu::call_count("cublasGemmEx") - plain, static_cast<uint64_t>(i)) << call;
    }
  }
}

TEST_F(CudaBlasCalls, memory_that_the_library_lacks_is_told_as_such) {
  const Tensor a = ones({16, 16}, {.device = kCuda});
  emu::fail_call("cublasGemmEx", 1, kAllocFailed);
  EXPECT_THROWS_WITH(raw::matmul(a, a), OutOfMemoryError, "(CUBLAS_STATUS_ALLOC_FAILED, 3)");
}

#endif  // TARN_CUDA_EMU

}  // namespace
}  // namespace tarn
