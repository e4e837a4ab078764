// blas_api.cpp - loads cuBLAS and cuBLASLt, and puts their errors into words.
#include "tarn/cuda/blas_api.h"

#if TARN_HAVE_CUBLAS

#include <memory>

#include "tarn/cuda/library.h"

namespace tarn::cuda {
namespace {

std::string soname(const char* stem) {
  return tarn::detail::concat(stem, ".so.", CUBLAS_VER_MAJOR);
}

const BlasApi* load() {
  auto api = std::make_unique<BlasApi>();
#define TARN_BIND(name) library.bind(api->name, #name);
  {
    Library library({.name = "cuBLAS",
                     .files = {soname("libcublas")},
                     .variable = "TARN_CUBLAS",
                     .without = "matrix products run on tarn's own kernels, many times slower"});
    TARN_CUBLAS_LIST(TARN_BIND)
    TARN_BIND(cublasGemmEx)
    TARN_BIND(cublasGemmStridedBatchedEx)
    if (!library.usable()) return nullptr;
  }
  Library library({.name = "cuBLASLt",
                   .files = {soname("libcublasLt")},
                   .variable = "TARN_CUBLASLT",
                   .without = "bias and activation of a matrix product are kernels of their own"});
  TARN_CUBLASLT_LIST(TARN_BIND)
#undef TARN_BIND
  api->has_lt = library.usable();
  return api.release();
}

}  // namespace

const BlasApi* blas_api() {
  static const BlasApi* const api = load();
  return api;
}

void fail_blas(const BlasApi& api, cublasStatus_t status, const char* call,
               const MatmulCall& product, Device device) {
  std::string shapes = tarn::detail::concat("[", product.m, ", ", product.k, "] x [", product.k,
                                            ", ", product.n, "] ", product.dtype);
  if (product.batch != 1) shapes += tarn::detail::concat(", batch of ", product.batch);
  const cudaError_t code = cudaGetLastError();  // must not show up again
  if (code != cudaSuccess) {
    shapes += tarn::detail::concat("; CUDA reports: ", cudaGetErrorString(code));
  }
  std::string name = call;
  if (name.ends_with("_v2")) name.resize(name.size() - 3);
  const std::string text = tarn::detail::concat(
      "cuda: ", name, " failed on ", device, ": ", api.cublasGetStatusString(status), " (",
      api.cublasGetStatusName(status), ", ", static_cast<int>(status), ") in matmul of ", shapes);
  if (status == CUBLAS_STATUS_ALLOC_FAILED || code == cudaErrorMemoryAllocation) {
    throw OutOfMemoryError(text);
  }
  throw DeviceError(text);
}

}  // namespace tarn::cuda

#endif
