// api_device.cpp - libcudart's entry points for devices, errors and kernels' attributes.
#include <cstdio>
#include <cstring>

#include "tarn/cuda/emu/runtime.h"

using namespace tarn::emu;

namespace {

constexpr int kMultiprocessors = 4;  // few, so that grids sized by them stay small
constexpr int kThreadsPerMultiprocessor = 2048, kBlocksPerMultiprocessor = 32;
constexpr std::size_t kSharedPerMultiprocessor = std::size_t{228} << 10;

bool is_device(int device) {
  return device >= 0 && device < settings().devices;
}

#define TARN_EMU_ERRORS(X)                                                                        \
  X(cudaSuccess, "no error")                                                                      \
  X(cudaErrorInvalidValue, "invalid argument")                                                    \
  X(cudaErrorMemoryAllocation, "out of memory")                                                   \
  X(cudaErrorInitializationError, "initialization error")                                         \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                              \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")  \
  X(cudaErrorInvalidDeviceFunction, "invalid device function")                                    \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                      \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                             \
  X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                             \
  X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")  \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                    \
  X(cudaErrorIllegalState, "the operation cannot be performed in the present state")              \
  X(cudaErrorNotReady, "device not ready")                                                        \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                          \
  X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                     \
  X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                            \
  X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                          \
  X(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled")                            \
  X(cudaErrorAssert, "device-side assert triggered")                                              \
  X(cudaErrorHardwareStackError, "hardware stack error")                                          \
  X(cudaErrorIllegalInstruction, "an illegal instruction was encountered")                        \
  X(cudaErrorMisalignedAddress, "misaligned address")                                             \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                         \
  X(cudaErrorNvlinkUncorrectable, "uncorrectable NVLink error detected during the execution")     \
  X(cudaErrorNotPermitted, "operation not permitted")                                             \
  X(cudaErrorNotSupported, "operation not supported")                                             \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")        \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture") \
  X(cudaErrorStreamCaptureMerge,                                                                  \
    "operation would result in a merge of separate capture sequences")                            \
  X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")      \
  X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                         \
  X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")   \
  X(cudaErrorStreamCaptureImplicit,                                                               \
    "operation would make the legacy stream depend on a capturing blocking stream")               \
  X(cudaErrorCapturedEvent,                                                                       \
    "operation not permitted on an event last recorded in a capturing stream")                    \
  X(cudaErrorStreamCaptureWrongThread,                                                            \
    "attempt to terminate a thread-local capture sequence from another thread")                   \
  X(cudaErrorUnknown, "unknown error")

int attribute(cudaDeviceAttr name, int* value) {
  switch (name) {
    case cudaDevAttrMultiProcessorCount:
      return *value = kMultiprocessors, 0;
    case cudaDevAttrComputeCapabilityMajor:
      return *value = 9, 0;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = 0, 0;
    case cudaDevAttrWarpSize:
      return *value = 32, 0;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return *value = 1024, 0;
    case cudaDevAttrMaxBlockDimZ:
      return *value = 64, 0;
    case cudaDevAttrMaxGridDimX:
      return *value = 2147483647, 0;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return *value = 65535, 0;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return *value = kThreadsPerMultiprocessor, 0;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return *value = kBlocksPerMultiprocessor, 0;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return *value = 48 << 10, 0;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = static_cast<int>(kMaxDynamicShared), 0;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return *value = static_cast<int>(kSharedPerMultiprocessor), 0;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return *value = 65536, 0;
    case cudaDevAttrL2CacheSize:
      return *value = 4 << 20, 0;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
      return *value = 1000000, 0;
    case cudaDevAttrGlobalMemoryBusWidth:
      return *value = 64, 0;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrStreamPrioritiesSupported:
      return *value = 1, 0;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrIntegrated:
      return *value = 0, 0;
    default:
      return 1;
  }
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  TARN_EMU_ENTRY_WITHOUT_CONTEXT(cudaGetDeviceCount);
  *count = settings().devices;
  return settings().devices > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  TARN_EMU_ENTRY_WITHOUT_CONTEXT(cudaSetDevice);
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  set_current_device(device);
  use_context(device);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  TARN_EMU_ENTRY_WITHOUT_CONTEXT(cudaGetDevice);
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  TARN_EMU_ENTRY_WITHOUT_CONTEXT(cudaGetDeviceProperties);
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
  properties->totalGlobalMem = settings().memory_bytes;
  properties->sharedMemPerBlock = std::size_t{48} << 10;
  properties->sharedMemPerBlockOptin = kMaxDynamicShared;
  properties->sharedMemPerMultiprocessor = kSharedPerMultiprocessor;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = kThreadsPerMultiprocessor;
  properties->maxBlocksPerMultiProcessor = kBlocksPerMultiprocessor;
  const int block[3] = {1024, 1024, 64}, grid[3] = {2147483647, 65535, 65535};
  std::memcpy(properties->maxThreadsDim, block, sizeof block);
  std::memcpy(properties->maxGridSize, grid, sizeof grid);
  properties->totalConstMem = 64 << 10;
  properties->major = 9;
  properties->multiProcessorCount = kMultiprocessors;
  properties->l2CacheSize = 4 << 20;
  properties->memoryBusWidth = 64;
  properties->concurrentKernels = properties->unifiedAddressing = 1;
  properties->streamPrioritiesSupported = properties->asyncEngineCount = 1;
  properties->pciBusID = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int device) {
  TARN_EMU_ENTRY_WITHOUT_CONTEXT(cudaDeviceGetAttribute);
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  return attribute(name, value) == 0 ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  TARN_EMU_ENTRY(cudaDeviceGetStreamPriorityRange);
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  TARN_EMU_ENTRY_WITHOUT_CONTEXT(cudaDeviceCanAccessPeer);
  if (!is_device(device) || !is_device(peer)) return fail(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  TARN_EMU_ENTRY(cudaDeviceEnablePeerAccess);
  if (!is_device(peer) || peer == current_device()) return fail(cudaErrorInvalidDevice);
  if (flags != 0) return fail(cudaErrorInvalidValue);
  Lock lock = lock_runtime();
  return enable_peer(current_device(), peer) ? cudaSuccess
                                             : fail(cudaErrorPeerAccessAlreadyEnabled);
}

// ---- errors

cudaError_t cudaGetLastError() {
  return last_error(true);
}
cudaError_t cudaPeekAtLastError() {
  return last_error(false);
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define X(code, text) \
  case code:          \
    return #code;
    TARN_EMU_ERRORS(X)
#undef X
    default:
      return "unrecognized error code";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
#define X(code, text) \
  case code:          \
    return text;
    TARN_EMU_ERRORS(X)
#undef X
    default:
      return "unrecognized error code";
  }
}

// ---- kernels

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute name, int value) {
  TARN_EMU_ENTRY(cudaFuncSetAttribute);
  if (function == nullptr) return fail(cudaErrorInvalidDeviceFunction);
  if (name == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  if (name != cudaFuncAttributeMaxDynamicSharedMemorySize) return fail(cudaErrorInvalidValue);
  Lock lock = lock_runtime();
  Kernel& kernel = kernel_of(function);
  const std::size_t most = kMaxDynamicShared - kernel.static_shared_bytes;
  if (value < 0 || static_cast<std::size_t>(value) > most) return fail(cudaErrorInvalidValue);
  kernel.dynamic_shared_limit = static_cast<std::size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  TARN_EMU_ENTRY(cudaFuncGetAttributes);
  if (function == nullptr) return fail(cudaErrorInvalidDeviceFunction);
  Lock lock = lock_runtime();
  const Kernel& kernel = kernel_of(function);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->sharedSizeBytes = kernel.static_shared_bytes;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(kernel.dynamic_shared_limit);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}

/// As the real one: the mangled name.
cudaError_t cudaFuncGetName(const char** name, const void* function) {
  TARN_EMU_ENTRY(cudaFuncGetName);
  if (function == nullptr) return fail(cudaErrorInvalidDeviceFunction);
  Lock lock = lock_runtime();
  *name = kernel_of(function).mangled.c_str();
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int threads, std::size_t dynamic_bytes) {
  TARN_EMU_ENTRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
  if (function == nullptr || threads <= 0 || threads > 1024) return fail(cudaErrorInvalidValue);
  Lock lock = lock_runtime();
  const std::size_t shared = kernel_of(function).static_shared_bytes + dynamic_bytes;
  *blocks = std::min(kBlocksPerMultiprocessor, kThreadsPerMultiprocessor / threads);
  if (shared > 0) {
    *blocks = std::min(*blocks, static_cast<int>(kSharedPerMultiprocessor / shared));
  }
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* function, int threads, std::size_t dynamic_bytes, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, dynamic_bytes);
}

}  // extern "C"
