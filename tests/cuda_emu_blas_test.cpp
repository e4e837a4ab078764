// cuda_emu_blas_test.cpp - the stand-ins for cuBLAS and cuBLASLt against plain loops.
#include <cmath>
#include <random>

#include <cublasLt.h>
#include <cublas_v2.h>

#include "tarn/core/half.h"
#include "tarn/tests/cuda_emu_tools.h"

namespace {

using namespace tarn::emu_test;

std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(generator);
  return v;
}

template <class T>
std::vector<T> converted(const std::vector<float>& v) {
  return std::vector<T>(v.begin(), v.end());
}

class Handle {
 public:
  Handle() { EXPECT_EQ(cublasCreate(&handle_), CUBLAS_STATUS_SUCCESS); }
  ~Handle() { EXPECT_EQ(cublasDestroy(handle_), CUBLAS_STATUS_SUCCESS); }
  operator cublasHandle_t() const { return handle_; }

 private:
  cublasHandle_t handle_ = nullptr;
};

constexpr cudaDataType_t type_of(double) {
  return CUDA_R_64F;
}
constexpr cudaDataType_t type_of(float) {
  return CUDA_R_32F;
}
constexpr cudaDataType_t type_of(tarn::half) {
  return CUDA_R_16F;
}
constexpr cudaDataType_t type_of(tarn::bfloat16) {
  return CUDA_R_16BF;
}

// c (m x n) = 0.5 op(a) op(b) + 2 c, all four transpositions, padded leading dimensions, two in a
// batch; the oracle sums in double over the converted inputs.
template <class T>
void compare_all(double tolerance) {
  const Handle handle;
  const int m = 37, n = 23, k = 19, ld = 41, batch = 2;
  const std::size_t size = ld * ld;
  const auto a = converted<T>(random_values(batch * size, 1));
  const auto b = converted<T>(random_values(batch * size, 2));
  const auto c = converted<T>(random_values(batch * size, 3));
  using Scalar = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Scalar alpha = Scalar(0.5), beta = 2;
  for (const auto ta : {CUBLAS_OP_N, CUBLAS_OP_T}) {
    for (const auto tb : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      const DeviceArray<T> da(a), db(b), dc(c);
      ASSERT_EQ(cublasGemmStridedBatchedEx(
                    handle, ta, tb, m, n, k, &alpha, da.get(), type_of(T()), ld, size, db.get(),
                    type_of(T()), ld, size, &beta, dc.get(), type_of(T()), ld, size, batch,
                    type_of(T()) == CUDA_R_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                    CUBLAS_GEMM_DEFAULT),
                CUBLAS_STATUS_SUCCESS);
      const std::vector<T> out = dc.values();
      for (int s = 0; s < batch; ++s) {
        for (int i = 0; i < ld; ++i) {
          for (int j = 0; j < ld; ++j) {
            const std::size_t o = s * size, at = o + i + j * ld;
            double expected = static_cast<double>(c[at]);
            if (i < m && j < n) {
              expected *= 2;
              for (int q = 0; q < k; ++q) {
                expected += 0.5 * static_cast<double>(a[o + (ta ? q + i * ld : i + q * ld)]) *
                            static_cast<double>(b[o + (tb ? j + q * ld : q + j * ld)]);
              }
            }
            ASSERT_NEAR(static_cast<double>(out[at]), expected, tolerance);
          }
        }
      }
    }
  }
}

TEST(EmuBlas, products_agree_with_double_loops) {
  compare_all<double>(1e-14);
  compare_all<float>(1e-5);
  compare_all<tarn::half>(4e-3);      // half an ulp at 8: 2^-8
  compare_all<tarn::bfloat16>(3e-2);  // half an ulp at 8: 2^-5
}

TEST(EmuBlas, tf32_rounds_the_inputs) {
  const Handle handle;
  const float fine = 1.0f + 0x1p-12f, one = 1, zero = 0;
  const DeviceArray<float> a(std::vector<float>{fine}), b(std::vector<float>{1}), c(1);
  const auto multiply = [&](cublasComputeType_t compute) {
    EXPECT_EQ(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.get(), CUDA_R_32F, 1,
                           b.get(), CUDA_R_32F, 1, &zero, c.get(), CUDA_R_32F, 1, compute,
                           CUBLAS_GEMM_DEFAULT),
              CUBLAS_STATUS_SUCCESS);
    return c.values()[0];
  };
  EXPECT_EQ(multiply(CUBLAS_COMPUTE_32F), fine);
  EXPECT_EQ(multiply(CUBLAS_COMPUTE_32F_FAST_TF32), 1.0f);
  EXPECT_EQ(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply(CUBLAS_COMPUTE_32F), 1.0f);
}

TEST(EmuBlas, arguments_are_refused_with_cublas_codes) {
  const Handle handle;
  const float one = 1, zero = 0;
  const DeviceArray<float> a(16), b(16), c(16);
  const auto code = [&](int m, int lda, cudaDataType_t type, cublasComputeType_t compute) {
    return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, 4, 4, &one, a.get(), type, lda,
                        b.get(), type, 4, &zero, c.get(), CUDA_R_32F, 4, compute,
                        CUBLAS_GEMM_DEFAULT);
  };
  EXPECT_EQ(code(4, 4, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(code(4, 3, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(code(-1, 4, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(code(4, 4, CUDA_R_32F, CUBLAS_COMPUTE_64F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(code(4, 4, CUDA_R_64F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cublasGemmEx(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.get(), CUDA_R_32F, 1,
                         b.get(), CUDA_R_32F, 1, &zero, c.get(), CUDA_R_32F, 1, CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST(EmuBlasDeathTest, a_matrix_beyond_its_memory_is_named) {
  const Handle handle;
  const float one = 1, zero = 0;
  const DeviceArray<float> a(15), b(16), c(16);
  EXPECT_DEATH(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, a.get(), CUDA_R_32F, 4,
                            b.get(), CUDA_R_32F, 4, &zero, c.get(), CUDA_R_32F, 4,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
               "cublasGemmEx: matrix A: 64 bytes at .* are not device memory");
}

TEST(EmuBlas, the_workspace_is_overwritten) {
  const Handle handle;
  const float one = 1, zero = 0;
  const DeviceArray<float> a(std::vector<float>{2}), c(1), workspace(std::vector<float>(64, 5));
  EXPECT_EQ(cublasSetWorkspace(handle, workspace.get(), 256), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasSetWorkspace(handle, workspace.get() + 1, 4), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.get(), CUDA_R_32F, 1,
                         a.get(), CUDA_R_32F, 1, &zero, c.get(), CUDA_R_32F, 1, CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(c.values()[0], 4.0f);
  EXPECT_TRUE(std::isnan(workspace.values()[0]));
}

TEST(EmuBlas, lt_adds_bias_and_activates) {
  const int m = 5, n = 3, k = 4;
  const std::vector<float> a = random_values(m * k, 1), b = random_values(k * n, 2);
  const std::vector<float> bias = random_values(m, 3);
  const DeviceArray<float> da(a), db(b), dbias(bias), dd(m * n);
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t la, lb, ld;
  cublasLtMatmulPreference_t preference;
  ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&la, CUDA_R_32F, m, k, m), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&lb, CUDA_R_32F, k, n, k), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&ld, CUDA_R_32F, m, n, m), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  const float* bias_pointer = dbias.get();
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer,
                                           sizeof bias_pointer),
            CUBLAS_STATUS_SUCCESS);
  const auto relu = [](double x) { return std::max(x, 0.0); };
  const auto gelu = [](double x) {
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  };
  for (const cublasLtEpilogue_t epilogue :
       {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS,
        CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU}) {
    ASSERT_EQ(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                             sizeof epilogue),
              CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    ASSERT_EQ(
        cublasLtMatmulAlgoGetHeuristic(handle, op, la, lb, ld, ld, preference, 1, &found, &count),
        CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(count, 1);
    const float one = 1, zero = 0;
    ASSERT_EQ(cublasLtMatmul(handle, op, &one, da.get(), la, db.get(), lb, &zero, dd.get(), ld,
                             dd.get(), ld, &found.algo, nullptr, 0, nullptr),
              CUBLAS_STATUS_SUCCESS);
    const std::vector<float> out = dd.values();
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        double x = (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 ? bias[i] : 0;
        for (int q = 0; q < k; ++q) x += static_cast<double>(a[i + q * m]) * b[q + j * k];
        if ((epilogue & CUBLASLT_EPILOGUE_RELU) != 0) x = relu(x);
        if ((epilogue & CUBLASLT_EPILOGUE_GELU) != 0) x = gelu(x);
        EXPECT_NEAR(out[i + j * m], x, 1e-6);
      }
    }
  }
  cublasLtMatmulPreferenceDestroy(preference);
  for (const auto layout : {la, lb, ld}) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(op);
  cublasLtDestroy(handle);
}

TEST(EmuBlas, calls_are_counted_and_made_to_fail) {
  const uint64_t before = tarn::emu::call_count("cublasCreate");
  tarn::emu::fail_call("cublasCreate", 2, CUBLAS_STATUS_ALLOC_FAILED);
  cublasHandle_t first = nullptr, second = nullptr;
  EXPECT_EQ(cublasCreate(&first), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasCreate(&second), CUBLAS_STATUS_ALLOC_FAILED);
  EXPECT_EQ(tarn::emu::call_count("cublasCreate"), before + 2);
  tarn::emu::clear_failures();
  cublasDestroy(first);
  EXPECT_NE(tarn::emu::library_symbol("cublasGemmEx"), nullptr);
  EXPECT_EQ(tarn::emu::library_symbol("cublasNothing"), nullptr);
}

}  // namespace
