// backend.cpp - memory, copies, streams and events of NVIDIA GPUs.
#include "tarn/cuda/backend.h"

#include <array>
#include <atomic>

#include "tarn/core/error.h"
#include "tarn/cuda/index_check.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/rt.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#endif

namespace tarn::cuda {
namespace {

cudaEvent_t raw_event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

// Calls made where nothing may be thrown: a process that ends unloads the driver before the last
// tensors die, and then every call fails.
void ignore(cudaError_t code) {
  if (code != cudaSuccess) cudaGetLastError();
}

// For calls that belong to no device: a thread that has none would set up the first GPU's context,
// which takes hundreds of MB there and locks that a kernel under way may hold.
void use_any_device() noexcept {
  try {
    set_any_device();
  } catch (const Error&) {  // the call itself tells
  }
}

bool is_capturing_on(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) {
    return status != cudaStreamCaptureStatusNone;
  }
  cudaGetLastError();  // the legacy stream, beside a recording: not itself recorded
  return false;
}

// A recording notes the address only, and pageable memory may hold something else by the time that
// the graph is replayed.
void check_recorded_copy(const void* host, cudaStream_t stream) {
  if (!is_capturing_on(stream)) return;
  cudaPointerAttributes attributes;
  TARN_CUDA_CALL(cudaPointerGetAttributes, &attributes, host);
  TARN_CHECK_AS(
      UnsupportedError, attributes.type != cudaMemoryTypeUnregistered,
      "cuda: a copy between the GPU and ordinary memory of the host cannot be recorded "
      "into a graph; pin that memory (pin_memory, to_async), or copy outside of the step");
}

// Without it a copy between two GPUs goes through the host. Pairs that cannot do it go on that way.
void enable_peer_access(int device, int peer) {
  constexpr int kMost = 128;  // Device holds the index in 8 bits
  static auto& asked = *new std::array<std::atomic<bool>, size_t{kMost} * kMost>{};
  if (asked[static_cast<size_t>(device) * kMost + static_cast<size_t>(peer)].exchange(true)) return;
  const DeviceGuard guard(device);
  int can = 0;
  ignore(cudaDeviceCanAccessPeer(&can, device, peer));
  if (can) ignore(cudaDeviceEnablePeerAccess(peer, 0));  // another library may have done so
}

class CudaBackend final : public Backend {
 public:
  int device_count() const override { return cuda::device_count(); }

  DeviceInfo info(int index) const override {
    cudaDeviceProp properties;
    TARN_CUDA_CALL(cudaGetDeviceProperties, &properties, index);
    return {properties.name, properties.totalGlobalMem, properties.multiProcessorCount,
            tarn::detail::concat("compute capability ", properties.major, ".", properties.minor)};
  }

  void* system_allocate(size_t bytes, int index) override {
    set_device(index);
    void* ptr = nullptr;
    const cudaError_t code = cudaMalloc(&ptr, bytes);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check_call(code, "cudaMalloc");
    return ptr;
  }
  void system_free(void* ptr, size_t, int) noexcept override {
    use_any_device();
    ignore(cudaFree(ptr));  // finds the device by the address
  }

#if defined(TARN_CUDA_EMU)
  void note_taken(void* block, size_t bytes, size_t block_bytes, Stream stream) override {
    emu::mark_allocated(block, bytes, block_bytes, stream.handle);
  }
  void note_given(void* block, Stream stream) noexcept override {
    emu::mark_freed(block, stream.handle);
  }
#endif

  void* pinned_allocate(size_t bytes) override {
    set_any_device();  // portable: pinned for every device
    void* ptr = nullptr;
    const cudaError_t code = cudaHostAlloc(&ptr, bytes, cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check_call(code, "cudaHostAlloc");
    return ptr;
  }
  void pinned_free(void* ptr) noexcept override {
    use_any_device();
    ignore(cudaFreeHost(ptr));
  }

  bool is_lost() const noexcept override {
    return context_has_ended();
  }
  bool is_capturing(Stream stream) override {
    set_device(stream.device.index);
    return is_capturing_on(raw_stream(stream));
  }

  uint64_t launch_count() const override {
    return cuda::launch_count();
  }

  void copy(void* to, Device to_device, const void* from, Device from_device, size_t bytes,
            Stream stream) override {
    if (bytes == 0) return;
    set_device(stream.device.index);
    const cudaStream_t queue = raw_stream(stream);
    if (to_device.is_cuda() && from_device.is_cuda() && !(to_device == from_device)) {
      enable_peer_access(to_device.index, from_device.index);
      enable_peer_access(from_device.index, to_device.index);
      set_device(stream.device.index);
      TARN_CUDA_CALL(cudaMemcpyPeerAsync, to, to_device.index, from, from_device.index, bytes,
                     queue);
      return;
    }
    const cudaMemcpyKind kind = to_device.is_cpu()     ? cudaMemcpyDeviceToHost
                                : from_device.is_cpu() ? cudaMemcpyHostToDevice
                                                       : cudaMemcpyDeviceToDevice;
    if (to_device.is_cpu()) check_recorded_copy(to, queue);
    if (from_device.is_cpu()) check_recorded_copy(from, queue);
    TARN_CUDA_CALL(cudaMemcpyAsync, to, from, bytes, kind, queue);
  }

  Stream default_stream(int index) override {
    return {Device(DeviceType::kCUDA, index), nullptr};
  }
  // Not synchronised with the default stream: who makes a stream orders it by events.
  Stream create_stream(int index, int priority) override {
    const DeviceGuard guard(index);
    cudaStream_t handle = nullptr;
    TARN_CUDA_CALL(cudaStreamCreateWithPriority, &handle, cudaStreamNonBlocking, priority);
    return {Device(DeviceType::kCUDA, index), handle};
  }
  void destroy_stream(Stream stream) noexcept override {
    use_any_device();
    ignore(cudaStreamDestroy(raw_stream(stream)));
  }
  void synchronize(Stream stream) override {
    set_device(stream.device.index);
    TARN_CUDA_CALL(cudaStreamSynchronize, raw_stream(stream));
    throw_index_error(stream.device.index);
  }
  void synchronize_device(int index) override {
    set_device(index);
    TARN_CUDA_CALL(cudaDeviceSynchronize);
    throw_index_error(index);
  }

  void* create_event(int index, bool timing) override {
    const DeviceGuard guard(index);
    cudaEvent_t event = nullptr;
    TARN_CUDA_CALL(cudaEventCreateWithFlags, &event,
                   timing ? cudaEventDefault : cudaEventDisableTiming);
    return event;
  }
  void destroy_event(void* event) noexcept override {
    use_any_device();
    ignore(cudaEventDestroy(raw_event(event)));
  }
  void record_event(void* event, Stream stream) override {
    set_device(stream.device.index);
    TARN_CUDA_CALL(cudaEventRecord, raw_event(event), raw_stream(stream));
  }
  void wait_event(void* event, Stream stream) override {
    set_device(stream.device.index);
    TARN_CUDA_CALL(cudaStreamWaitEvent, raw_stream(stream), raw_event(event), 0u);
  }
  bool query_event(void* event) override {
    set_any_device();
    const cudaError_t code = cudaEventQuery(raw_event(event));
    if (code == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check_call(code, "cudaEventQuery");
    return true;
  }
  void synchronize_event(void* event) override {
    set_any_device();
    TARN_CUDA_CALL(cudaEventSynchronize, raw_event(event));
  }
  void throw_late_error(int index) override {
    throw_index_error(index);
  }
  double elapsed_ms(void* start, void* end) override {
    float ms = 0;
    set_any_device();
    TARN_CUDA_CALL(cudaEventElapsedTime, &ms, raw_event(start), raw_event(end));
    return ms;
  }
};

}  // namespace

Backend& cuda_backend() {
  static CudaBackend* instance = new CudaBackend();
  return *instance;
}

}  // namespace tarn::cuda
