// blas.cpp - stand-in for the part of cuBLAS that tarn uses, behind cuBLAS's own prototypes.
#include <cstring>

#include "tarn/cuda/emu/gemm.h"

using namespace tarn::emu;

struct cublasContext : BlasHandle {};

namespace {

double scalar(const void* value, cublasComputeType_t compute) {
  if (compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC) {
    return *static_cast<const double*>(value);
  }
  return static_cast<double>(*static_cast<const float*>(value));
}

bool uses_tf32(const BlasHandle& handle, cudaDataType_t type, cublasComputeType_t compute) {
  if (type != CUDA_R_32F) return false;
  return compute == CUBLAS_COMPUTE_32F_FAST_TF32 ||
         (compute == CUBLAS_COMPUTE_32F && (handle.math & CUBLAS_TF32_TENSOR_OP_MATH) != 0);
}

bool is_operation(cublasOperation_t operation) {
  return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T || operation == CUBLAS_OP_C;
}

// What the handle and the pointers of every product must satisfy.
cublasStatus_t prepare(const BlasHandle* handle, Gemm& gemm, cublasOperation_t transpose_a,
                       cublasOperation_t transpose_b, const void* alpha, const void* beta,
                       cublasComputeType_t compute) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (!is_operation(transpose_a) || !is_operation(transpose_b)) return CUBLAS_STATUS_INVALID_VALUE;
  gemm.transpose_a = transpose_a != CUBLAS_OP_N;
  gemm.transpose_b = transpose_b != CUBLAS_OP_N;
  if (const cublasStatus_t status = check_gemm(gemm, compute)) return status;
  gemm.alpha = scalar(alpha, compute);
  gemm.beta = scalar(beta, compute);
  gemm.tf32 = uses_tf32(*handle, gemm.a.type, compute);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t submit(const BlasHandle& handle, std::function<void()> run) {
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle.stream);
  if (stream == nullptr || stream->device != handle.device || current_device() != handle.device) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  return blas_status(enqueue(
      *stream,
      [run = std::move(run), workspace = handle.workspace, bytes = handle.workspace_bytes] {
        MemoryAccess access;
        if (workspace != nullptr) {
          require_device_range(workspace, bytes, "cublasSetWorkspace");
          spoil_workspace(workspace, bytes);
        }
        run();
      },
      lock));
}

cublasStatus_t multiply(const char* call, const BlasHandle& handle, const Gemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return CUBLAS_STATUS_SUCCESS;
  return submit(handle, [call, gemm] {
    check_gemm_memory(gemm, call);
    run_gemm(gemm);
  });
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  TARN_EMU_BLAS_ENTRY(cublasCreate);
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new cublasContext;
  (*handle)->device = current_device();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  TARN_EMU_BLAS_ENTRY(cublasDestroy);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  TARN_EMU_BLAS_ENTRY(cublasGetVersion);
  if (version == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

/// Resets the workspace, as the real one.
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  TARN_EMU_BLAS_ENTRY(cublasSetStream);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  handle->workspace = nullptr;
  handle->workspace_bytes = 0;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  TARN_EMU_BLAS_ENTRY(cublasGetStream);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  TARN_EMU_BLAS_ENTRY(cublasSetWorkspace);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (reinterpret_cast<std::size_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  handle->workspace = workspace;  // looked at when a product uses it, in stream order
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  TARN_EMU_BLAS_ENTRY(cublasSetMathMode);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  TARN_EMU_BLAS_ENTRY(cublasGetMathMode);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  *mode = handle->math;
  return CUBLAS_STATUS_SUCCESS;
}

/// Scalars on the host only.
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  TARN_EMU_BLAS_ENTRY(cublasSetPointerMode);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t) {
  TARN_EMU_BLAS_ENTRY(cublasSetAtomicsMode);
  return handle == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_UNKNOWN";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an invalid value was used as an argument";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality is not supported";
    default:
      return "the library failed";
  }
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transpose_a,
                                          cublasOperation_t transpose_b, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType a_type,
                                          int lda, long long stride_a, const void* b,
                                          cudaDataType b_type, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType c_type, int ldc,
                                          long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
  TARN_EMU_BLAS_ENTRY(cublasGemmStridedBatchedEx);
  Gemm gemm;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.batch = batch;
  gemm.a = {a, a_type, lda, stride_a};
  gemm.b = {b, b_type, ldb, stride_b};
  gemm.c = gemm.d = {c, c_type, ldc, stride_c};
  const cublasStatus_t status =
      prepare(handle, gemm, transpose_a, transpose_b, alpha, beta, compute);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return multiply("cublasGemmStridedBatchedEx", *handle, gemm);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transpose_a,
                            cublasOperation_t transpose_b, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType a_type, int lda, const void* b,
                            cudaDataType b_type, int ldb, const void* beta, void* c,
                            cudaDataType c_type, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t) {
  TARN_EMU_BLAS_ENTRY(cublasGemmEx);
  Gemm gemm;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.a = {a, a_type, lda, 0};
  gemm.b = {b, b_type, ldb, 0};
  gemm.c = gemm.d = {c, c_type, ldc, 0};
  const cublasStatus_t status =
      prepare(handle, gemm, transpose_a, transpose_b, alpha, beta, compute);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return multiply("cublasGemmEx", *handle, gemm);
}

/// The arrays of pointers lie in device memory.
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t transpose_a,
                                   cublasOperation_t transpose_b, int m, int n, int k,
                                   const void* alpha, const void* const a[], cudaDataType a_type,
                                   int lda, const void* const b[], cudaDataType b_type, int ldb,
                                   const void* beta, void* const c[], cudaDataType c_type, int ldc,
                                   int batch, cublasComputeType_t compute, cublasGemmAlgo_t) {
  TARN_EMU_BLAS_ENTRY(cublasGemmBatchedEx);
  Gemm gemm;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.batch = batch;
  gemm.a = {nullptr, a_type, lda, 0};
  gemm.b = {nullptr, b_type, ldb, 0};
  gemm.c = gemm.d = {nullptr, c_type, ldc, 0};
  const cublasStatus_t status =
      prepare(handle, gemm, transpose_a, transpose_b, alpha, beta, compute);
  if (status != CUBLAS_STATUS_SUCCESS || m == 0 || n == 0 || batch == 0) return status;
  gemm.batch = 1;
  return submit(*handle, [gemm, a, b, c, batch] {
    for (const void* pointers :
         {static_cast<const void*>(a), static_cast<const void*>(b), static_cast<const void*>(c)}) {
      require_device_range(pointers, static_cast<std::size_t>(batch) * sizeof(void*),
                           "cublasGemmBatchedEx: array of pointers");
    }
    for (int i = 0; i < batch; ++i) {
      Gemm one = gemm;
      one.a.data = a[i];
      one.b.data = b[i];
      one.c.data = one.d.data = c[i];
      check_gemm_memory(one, "cublasGemmBatchedEx");
      run_gemm(one);
    }
  });
}

}  // extern "C"
