// blas_lt.cpp - stand-in for the part of cuBLASLt that tarn uses: matrix products with a fused bias
// and activation.
#include <algorithm>
#include <cstring>

#include <cublasLt.h>

#include "tarn/cuda/emu/gemm.h"

using namespace tarn::emu;

namespace {

// What lies behind the opaque descriptor handles.
struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale_type;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N, transpose_c = CUBLAS_OP_N;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;  // as the result
};

struct Layout {
  uint32_t type;
  uint64_t rows, columns;
  int64_t ld;
  int32_t order = CUBLASLT_ORDER_COL;
  int32_t batch = 1;
  int64_t stride = 0;
};

struct Preference {
  uint64_t workspace_bytes = 0;
};

Description& description_of(cublasLtMatmulDesc_t handle) {
  return *reinterpret_cast<Description*>(handle);
}
Layout& layout_of(cublasLtMatrixLayout_t handle) {
  return *reinterpret_cast<Layout*>(handle);
}

template <class T>
cublasStatus_t assign(T& field, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

bool is_known_epilogue(uint32_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_GELU || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
}

Matrix matrix_of(const void* data, const Layout& layout) {
  return {data, static_cast<cudaDataType_t>(layout.type), layout.ld, layout.stride};
}

// The product that descriptor and layouts describe, or why there is none.
cublasStatus_t describe(const Description& op, const Layout& a, const Layout& b, const Layout& c,
                        const Layout& d, Gemm& gemm) {
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (layout->order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (layout->batch != d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool has_unknown = op.transpose_c != CUBLAS_OP_N ||
                           op.pointer_mode != CUBLASLT_POINTER_MODE_HOST ||
                           !is_known_epilogue(op.epilogue);
  if (has_unknown) return CUBLAS_STATUS_NOT_SUPPORTED;
  gemm.transpose_a = op.transpose_a != CUBLAS_OP_N;
  gemm.transpose_b = op.transpose_b != CUBLAS_OP_N;
  gemm.m = static_cast<int64_t>(d.rows);
  gemm.n = static_cast<int64_t>(d.columns);
  gemm.k = static_cast<int64_t>(gemm.transpose_a ? a.rows : a.columns);
  const auto m = gemm.transpose_a ? a.columns : a.rows, k = gemm.transpose_b ? b.columns : b.rows;
  const auto n = gemm.transpose_b ? b.rows : b.columns;
  if (m != d.rows || n != d.columns || k != static_cast<uint64_t>(gemm.k) || c.rows != d.rows ||
      c.columns != d.columns) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  gemm.batch = d.batch;
  gemm.a = matrix_of(nullptr, a);
  gemm.b = matrix_of(nullptr, b);
  gemm.c = matrix_of(nullptr, c);
  gemm.d = matrix_of(nullptr, d);
  gemm.tf32 = op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const uint32_t activation = op.epilogue & ~static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS);
  gemm.activation = activation == CUBLASLT_EPILOGUE_RELU   ? Activation::kRelu
                    : activation == CUBLASLT_EPILOGUE_GELU ? Activation::kGelu
                                                           : Activation::kNone;
  gemm.bias_type = op.bias_type < 0 ? gemm.d.type : static_cast<cudaDataType_t>(op.bias_type);
  return check_gemm(gemm, op.compute);
}

bool has_bias(const Description& op) {
  return (op.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
}

}  // namespace

extern "C" {

/// A cublasHandle_t may be used as well, as with the real one.
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  TARN_EMU_BLAS_ENTRY(cublasLtCreate);
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto* state = new BlasHandle;
  state->device = current_device();
  *handle = reinterpret_cast<cublasLtHandle_t>(state);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  TARN_EMU_BLAS_ENTRY(cublasLtDestroy);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete reinterpret_cast<BlasHandle*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

std::size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}

// ---- descriptors

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                        cudaDataType_t scale_type) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatmulDescCreate);
  *handle = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute, scale_type});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatmulDescDestroy);
  delete &description_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatmulDescSetAttribute);
  Description& op = description_of(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(op.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(op.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      return assign(op.transpose_c, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return assign(op.pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(op.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(op.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return assign(op.bias_type, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatrixLayoutCreate);
  *handle = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{static_cast<uint32_t>(type), rows, columns, ld});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatrixLayoutDestroy);
  delete &layout_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatrixLayoutSetAttribute);
  Layout& layout = layout_of(handle);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return assign(layout.type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return assign(layout.order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return assign(layout.rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return assign(layout.columns, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return assign(layout.ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return assign(layout.batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return assign(layout.stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatmulPreferenceCreate);
  *handle = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatmulPreferenceDestroy);
  delete reinterpret_cast<Preference*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

/// Alignments and the like are accepted and make no difference.
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatmulPreferenceSetAttribute);
  if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return CUBLAS_STATUS_SUCCESS;
  return assign(reinterpret_cast<Preference*>(handle)->workspace_bytes, value, bytes);
}

// ---- products

/// One algorithm, which needs all the workspace it may have.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatmulAlgoGetHeuristic);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (requested < 1 || results == nullptr || returned == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *returned = 0;
  Gemm gemm;
  const cublasStatus_t status =
      describe(description_of(op), layout_of(a), layout_of(b), layout_of(c), layout_of(d), gemm);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  std::memset(results, 0, sizeof *results);
  results->workspaceSize =
      static_cast<std::size_t>(reinterpret_cast<Preference*>(preference)->workspace_bytes);
  results->state = CUBLAS_STATUS_SUCCESS;
  results->wavesCount = 1;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op_handle,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  TARN_EMU_BLAS_ENTRY(cublasLtMatmul);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const Description& op = description_of(op_handle);
  Gemm gemm;
  const cublasStatus_t status = describe(op, layout_of(a_layout), layout_of(b_layout),
                                         layout_of(c_layout), layout_of(d_layout), gemm);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const bool wide = op.scale_type == CUDA_R_64F;
  gemm.alpha = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  gemm.beta = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  gemm.a.data = a;
  gemm.b.data = b;
  gemm.c.data = c;
  gemm.d.data = d;
  if (has_bias(op)) {
    if (op.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    // The heuristic is told how the matrices lie, never the bias: kernels read it 16 bytes at a
    // time.
    if (reinterpret_cast<uintptr_t>(op.bias) % 16 != 0) {
      die("cublasLtMatmul: the bias at %p is not aligned to 16 bytes", op.bias);
    }
    gemm.bias = op.bias;
  }
  if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return CUBLAS_STATUS_SUCCESS;
  Lock lock = lock_runtime();
  Stream* queue = stream_of(stream);
  if (queue == nullptr || queue->device != current_device()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (workspace_bytes > 0 && reinterpret_cast<std::size_t>(workspace) % 16 != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return blas_status(enqueue(
      *queue,
      [gemm, workspace, workspace_bytes] {
        check_gemm_memory(gemm, "cublasLtMatmul");
        require_device_range(workspace, workspace_bytes, "cublasLtMatmul: workspace");
        MemoryAccess access;
        if (workspace_bytes > 0) spoil_workspace(workspace, workspace_bytes);
        run_gemm(gemm);
      },
      lock));
}

}  // extern "C"
