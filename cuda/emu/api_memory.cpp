// api_memory.cpp - libcudart's entry points for memory.
#include <cstring>

#include "tarn/cuda/emu/runtime.h"

using namespace tarn::emu;

namespace {

bool is_device(int device) {
  return device >= 0 && device < settings().devices;
}

bool is_pageable(const void* pointer) {
  return device_of(pointer) == kNoDevice && !is_pinned(pointer);
}

// Each end of the copy must be where `kind` says it is.
bool is_valid_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = device_of(to) != kNoDevice, from_device = device_of(from) != kNoDevice;
  if (to_device && !is_device_range(to, bytes)) return false;
  if (from_device && !is_device_range(from, bytes)) return false;
  if (is_in_arena(to) != to_device || is_in_arena(from) != from_device) return false;  // freed
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    default:
      return true;
  }
}

// Pageable host memory is not asynchronous: a source is copied before the call returns, a
// destination is complete when it returns. (While a stream is captured only its address is noted.)
cudaError_t copy(const char* name, void* to, const void* from, std::size_t bytes,
                 cudaMemcpyKind kind, cudaStream_t handle, Lock& lock) {
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (!is_valid_copy(to, from, bytes, kind)) return fail(cudaErrorInvalidValue);
  // The blocks of a caching allocator change in stream order: looked at when the copy runs.
  const auto check = [name, to, from, bytes] {
    if (device_of(to) != kNoDevice) require_device_range(to, bytes, name);
    if (device_of(from) != kNoDevice) require_device_range(from, bytes, name);
  };
  const bool capturing = stream->capture != nullptr;
  std::function<void()> run;
  if (!capturing && is_pageable(from)) {
    // Also where work is eager: while the stream waits, another thread may make it wait for the
    // world outside, and then the copy is still queued when this call returns.
    auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(from),
                                                      static_cast<const char*>(from) + bytes);
    run = [check, to, staged, bytes] {
      check();
      MemoryAccess access;
      std::memcpy(to, staged->data(), bytes);
    };
  } else {
    run = [check, to, from, bytes] {
      check();
      MemoryAccess access;
      std::memmove(to, from, bytes);
    };
  }
  if (const cudaError_t error = enqueue(*stream, std::move(run), lock)) return error;
  if (!capturing && is_pageable(to) && !stream->idle()) drain(*stream, lock);
  return cudaSuccess;
}

cudaError_t fill(const char* name, void* data, int value, std::size_t bytes, cudaStream_t handle,
                 Lock& lock) {
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (!is_device_range(data, bytes)) return fail(cudaErrorInvalidValue);
  return enqueue(
      *stream,
      [name, data, value, bytes] {
        require_device_range(data, bytes, name);
        MemoryAccess access;
        std::memset(data, value, bytes);
      },
      lock);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  TARN_EMU_ENTRY(cudaMalloc);
  Lock lock = lock_runtime();
  if (pointer == nullptr) return fail(cudaErrorInvalidValue);
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = allocate_device(current_device(), bytes);
  return *pointer != nullptr ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

/// Waits for all work of the device, as the real one.
cudaError_t cudaFree(void* pointer) {
  TARN_EMU_ENTRY(cudaFree);
  if (pointer == nullptr) return cudaSuccess;
  Lock lock = lock_runtime();
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  const int device = device_of(pointer);
  if (device == kNoDevice) return fail(cudaErrorInvalidValue);
  drain_device(device, lock);
  return free_device(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  TARN_EMU_ENTRY(cudaMallocHost);
  Lock lock = lock_runtime();
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  *pointer = bytes > 0 ? allocate_host(bytes) : nullptr;
  return *pointer != nullptr || bytes == 0 ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  TARN_EMU_ENTRY(cudaHostAlloc);
  Lock lock = lock_runtime();
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  *pointer = bytes > 0 ? allocate_host(bytes) : nullptr;
  return *pointer != nullptr || bytes == 0 ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* pointer) {
  TARN_EMU_ENTRY(cudaFreeHost);
  if (pointer == nullptr) return cudaSuccess;
  Lock lock = lock_runtime();
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  for (int device = 0; device < settings().devices; ++device) drain_device(device, lock);
  return free_host(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* pointer, unsigned) {
  TARN_EMU_ENTRY(cudaHostGetDevicePointer);
  Lock lock = lock_runtime();
  if (!is_pinned(pointer)) return fail(cudaErrorInvalidValue);
  *device_pointer = pointer;  // unified addressing
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  TARN_EMU_ENTRY(cudaMemGetInfo);
  Lock lock = lock_runtime();
  *free = free_device_bytes(current_device());
  *total = settings().memory_bytes;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  TARN_EMU_ENTRY(cudaPointerGetAttributes);
  Lock lock = lock_runtime();
  std::memset(attributes, 0, sizeof *attributes);
  attributes->device = device_of(pointer);
  void* address = const_cast<void*>(pointer);
  if (attributes->device != kNoDevice) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = address;
  } else if (is_pinned(pointer)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = current_device();
    attributes->devicePointer = attributes->hostPointer = address;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    attributes->hostPointer = address;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  TARN_EMU_ENTRY(cudaMemcpyAsync);
  Lock lock = lock_runtime();
  return copy("cudaMemcpyAsync", to, from, bytes, kind, stream, lock);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  TARN_EMU_ENTRY(cudaMemcpy);
  Lock lock = lock_runtime();
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  if (const cudaError_t error = copy("cudaMemcpy", to, from, bytes, kind, nullptr, lock)) {
    return error;
  }
  drain(*stream_of(nullptr), lock);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  TARN_EMU_ENTRY(cudaMemcpyPeerAsync);
  Lock lock = lock_runtime();
  if (!is_device(to_device) || !is_device(from_device)) return fail(cudaErrorInvalidDevice);
  if (bytes > 0 && (device_of(to) != to_device || device_of(from) != from_device)) {
    return fail(cudaErrorInvalidValue);
  }
  return copy("cudaMemcpyPeerAsync", to, from, bytes, cudaMemcpyDeviceToDevice, stream, lock);
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  TARN_EMU_ENTRY(cudaMemsetAsync);
  Lock lock = lock_runtime();
  return fill("cudaMemsetAsync", data, value, bytes, stream, lock);
}

cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  TARN_EMU_ENTRY(cudaMemset);
  Lock lock = lock_runtime();
  return fill("cudaMemset", data, value, bytes, nullptr, lock);
}

}  // extern "C"
