// gemm.h - the matrix product behind the stand-ins for cuBLAS and cuBLASLt.
#pragma once

#include <cstdint>

#include <cublas_v2.h>

#include "tarn/cuda/emu/runtime.h"

namespace tarn::emu {

/// A column-major matrix in device memory; those of a batch lie `stride` elements apart.
struct Matrix {
  const void* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;
  int64_t ld = 0, stride = 0;
};

enum class Activation { kNone, kRelu, kGelu };

/// d = activation(alpha * op(a) @ op(b) + beta * c + bias), m x n, summed over k in f32 (f64 if
/// the types are f64). The bias has one value per row. c is not read if beta is 0.
struct Gemm {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transpose_a = false, transpose_b = false;
  bool tf32 = false;  // round f32 inputs to 10 mantissa bits, as the tensor cores do
  double alpha = 1, beta = 0;
  Matrix a, b, c, d;
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;
  Activation activation = Activation::kNone;
};

/// Success, INVALID_VALUE for sizes and leading dimensions that do not fit, NOT_SUPPORTED for
/// combinations of types that cuBLAS does not have.
cublasStatus_t check_gemm(const Gemm& gemm, cublasComputeType_t compute);

/// Aborts if a matrix is not within one block of device memory, or those of d overlap.
void check_gemm_memory(const Gemm& gemm, const char* call);

/// Computes it now. Device memory must be accessible.
void run_gemm(const Gemm& gemm);

std::size_t size_of(cudaDataType_t type);  // 0: not one of f64, f32, f16, bf16

/// Fills a scratch area with NaN, as if the library had used it.
void spoil_workspace(void* workspace, std::size_t bytes);

/// State behind cublasHandle_t and cublasLtHandle_t.
struct BlasHandle {
  int device = 0;
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

/// First line of every cuBLAS entry point.
#define TARN_EMU_BLAS_ENTRY(name)                                                           \
  static ::tarn::emu::Entry emu_entry(#name);                                               \
  if (const int emu_code = emu_entry.enter()) return static_cast<cublasStatus_t>(emu_code); \
  if (::tarn::emu::sticky_error() != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED

/// cuBLAS's view of an error of the runtime.
inline cublasStatus_t blas_status(cudaError_t error) {
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace tarn::emu
