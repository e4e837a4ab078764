// libraries.cpp - finds the stand-ins for vendor libraries by name, as dlsym does in the real ones.
//
// The list also keeps the linker from leaving them out: nobody else refers to them.
#include <cstring>

#include "tarn/cuda/emu/hooks.h"

// clang-format off
#define TARN_EMU_CUBLAS(X) \
  X(cublasCreate_v2) \
  X(cublasDestroy_v2) \
  X(cublasGetVersion_v2) \
  X(cublasSetStream_v2) \
  X(cublasGetStream_v2) \
  X(cublasSetWorkspace_v2) \
  X(cublasSetMathMode) \
  X(cublasGetMathMode) \
  X(cublasSetPointerMode_v2) \
  X(cublasSetAtomicsMode) \
  X(cublasGetStatusName) \
  X(cublasGetStatusString) \
  X(cublasGemmEx) \
  X(cublasGemmStridedBatchedEx) \
  X(cublasGemmBatchedEx)
#define TARN_EMU_CUBLASLT(X) \
  X(cublasLtCreate) \
  X(cublasLtDestroy) \
  X(cublasLtGetVersion) \
  X(cublasLtMatmulDescCreate) \
  X(cublasLtMatmulDescDestroy) \
  X(cublasLtMatmulDescSetAttribute) \
  X(cublasLtMatrixLayoutCreate) \
  X(cublasLtMatrixLayoutDestroy) \
  X(cublasLtMatrixLayoutSetAttribute) \
  X(cublasLtMatmulPreferenceCreate) \
  X(cublasLtMatmulPreferenceDestroy) \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic) \
  X(cublasLtMatmul)
#if TARN_HAVE_CUDNN
#define TARN_EMU_CUDNN(X) \
  X(cudnnGetVersion) \
  X(cudnnGetErrorString) \
  X(cudnnGetLastErrorString) \
  X(cudnnCreate) \
  X(cudnnDestroy) \
  X(cudnnSetStream) \
  X(cudnnBackendCreateDescriptor) \
  X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendSetAttribute) \
  X(cudnnBackendGetAttribute) \
  X(cudnnBackendFinalize) \
  X(cudnnBackendExecute)
#else
#define TARN_EMU_CUDNN(X)
#endif
#if TARN_HAVE_NCCL
static constexpr bool kHaveNccl = true;
#define TARN_EMU_NCCL(X) \
  X(ncclGetVersion) \
  X(ncclGetUniqueId) \
  X(ncclCommInitRankConfig) \
  X(ncclCommFinalize) \
  X(ncclCommDestroy) \
  X(ncclCommAbort) \
  X(ncclCommGetAsyncError) \
  X(ncclGetErrorString) \
  X(ncclGetLastError) \
  X(ncclAllReduce) \
  X(ncclReduce) \
  X(ncclBroadcast) \
  X(ncclAllGather) \
  X(ncclReduceScatter) \
  X(ncclSend) \
  X(ncclRecv) \
  X(ncclGroupStart) \
  X(ncclGroupEnd)
#else
static constexpr bool kHaveNccl = false;
#define TARN_EMU_NCCL(X)
#endif
// clang-format on

// Declared under another name: only the address is wanted, and some are overloaded in the header.
#define DECLARE(name) extern "C" void tarn_emu_##name() asm(#name);
TARN_EMU_CUBLAS(DECLARE)
TARN_EMU_CUBLASLT(DECLARE)
TARN_EMU_CUDNN(DECLARE)
TARN_EMU_NCCL(DECLARE)
#undef DECLARE

namespace tarn::emu {

bool stands_in_for(const char* library) {
  return std::strcmp(library, "cuBLAS") == 0 || std::strcmp(library, "cuBLASLt") == 0 ||
         (TARN_HAVE_CUDNN && std::strcmp(library, "cuDNN") == 0) ||
         (kHaveNccl && std::strcmp(library, "NCCL") == 0);
}

void* library_symbol(const char* name) {
  struct Symbol {
    const char* name;
    void (*address)();
  };
#define ENTRY(name) {#name, tarn_emu_##name},
  static const Symbol kSymbols[] = {TARN_EMU_CUBLAS(ENTRY) TARN_EMU_CUBLASLT(ENTRY)
                                        TARN_EMU_CUDNN(ENTRY) TARN_EMU_NCCL(ENTRY)};
#undef ENTRY
  for (const Symbol& symbol : kSymbols) {
    if (std::strcmp(symbol.name, name) == 0) return reinterpret_cast<void*>(symbol.address);
  }
  return nullptr;
}

}  // namespace tarn::emu
