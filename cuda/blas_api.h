// blas_api.h - the functions of cuBLAS and cuBLASLt that tarn calls, bound at run time.
#pragma once

#if !defined(TARN_NO_CUBLAS) && __has_include(<cublas_v2.h>) && __has_include(<cublasLt.h>)
#define TARN_HAVE_CUBLAS 1

#include <cublasLt.h>
#include <cublas_v2.h>

#include "tarn/cuda/matmul.h"
#include "tarn/cuda/rt.h"

// clang-format off
#define TARN_CUBLAS_LIST(X)                                                                      \
  X(cublasCreate_v2) X(cublasSetStream_v2) X(cublasSetWorkspace_v2) X(cublasSetMathMode)         \
  X(cublasGetStatusName) X(cublasGetStatusString)
#define TARN_CUBLASLT_LIST(X)                                                                    \
  X(cublasLtCreate) X(cublasLtMatmul) X(cublasLtMatmulAlgoGetHeuristic)                          \
  X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute)     \
  X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)                                   \
  X(cublasLtMatrixLayoutSetAttribute) X(cublasLtMatmulPreferenceCreate)                          \
  X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)
// clang-format on

namespace tarn::cuda {

// The header overloads these two for C++, so their types must be spelled.
using GemmEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n,
                              int k, const void* alpha, const void* a, cudaDataType, int lda,
                              const void* b, cudaDataType, int ldb, const void* beta, void* c,
                              cudaDataType, int ldc, cublasComputeType_t, cublasGemmAlgo_t);
using GemmStridedBatchedEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t,
                                            int m, int n, int k, const void* alpha, const void* a,
                                            cudaDataType, int lda, long long stride_a,
                                            const void* b, cudaDataType, int ldb,
                                            long long stride_b, const void* beta, void* c,
                                            cudaDataType, int ldc, long long stride_c, int batch,
                                            cublasComputeType_t, cublasGemmAlgo_t);
using CheckedGemmEx = decltype(static_cast<GemmEx*>(&::cublasGemmEx));
using CheckedBatchedEx =
    decltype(static_cast<GemmStridedBatchedEx*>(&::cublasGemmStridedBatchedEx));

struct BlasApi {
#define TARN_MEMBER(name) decltype(&::name) name = nullptr;
  TARN_CUBLAS_LIST(TARN_MEMBER)
  CheckedGemmEx cublasGemmEx = nullptr;
  CheckedBatchedEx cublasGemmStridedBatchedEx = nullptr;
  TARN_CUBLASLT_LIST(TARN_MEMBER)
#undef TARN_MEMBER
  bool has_lt = false;
};

/// The bound functions; null if the library is off or missing. Throws Error if it is missing but
/// TARN_CUBLAS=on. Loads at the first call.
const BlasApi* blas_api();

/// Throws DeviceError "cuda: <call> failed on cuda:<i>: <text> (<name>, <code>) in matmul of ...",
/// or OutOfMemoryError if that is what it says.
[[noreturn, gnu::cold]] void fail_blas(const BlasApi& api, cublasStatus_t status, const char* call,
                                       const MatmulCall& product, Device device);

/// Calls a function of the table; any status but success throws.
#define TARN_BLAS_CALL(api, product, device, function, ...)                  \
  do {                                                                       \
    const cublasStatus_t tarn_status = (api).function(__VA_ARGS__);          \
    if (__builtin_expect(tarn_status != CUBLAS_STATUS_SUCCESS, 0)) {         \
      ::tarn::cuda::fail_blas(api, tarn_status, #function, product, device); \
    }                                                                        \
  } while (0)

/// A product in cuBLAS's terms. Matrices are column-major there, and our row-major C [m, n] is
/// their C' [n, m] = B' A': the operands swap places, and what is dense along its rows for us is
/// not transposed for them.
struct BlasShape {
  int rows = 0, cols = 0, depth = 0, batch = 0;  // n, m, k
  cublasOperation_t left_op = CUBLAS_OP_N, right_op = CUBLAS_OP_N;
  int64_t left_ld = 0, right_ld = 0, out_ld = 0;
  cudaDataType type = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;

  bool is_f64() const { return type == CUDA_R_64F; }
};

/// A factor in the type the library reads it in.
struct BlasScalar {
  explicit BlasScalar(double v) : wide(v), narrow(static_cast<float>(v)) {}
  const void* get(const BlasShape& shape) const {
    return shape.is_f64() ? static_cast<const void*>(&wide) : &narrow;
  }
  double wide;
  float narrow;
};

/// One device's use of cuBLASLt: plans by shape. Not thread-safe by itself.
class BlasLt {
 public:
  /// Computes the product with its bias, and its activation if `fused_activation`. False if the
  /// library has no algorithm for it; nothing has been launched then.
  bool matmul(const BlasApi& api, const MatmulCall& call, const BlasShape& shape,
              bool fused_activation, void* workspace, size_t workspace_bytes, Stream stream);

 private:
  struct Impl;
  Impl* impl_ = nullptr;  // lives as long as the process
};

}  // namespace tarn::cuda
#endif
