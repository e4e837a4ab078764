// backend.cpp - memory, copies, streams and events of NVIDIA GPUs.
#include "tarn/cuda/backend.h"

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
    ignore(cudaFreeHost(ptr));
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
      TARN_CUDA_CALL(cudaMemcpyPeerAsync, to, to_device.index, from, from_device.index, bytes,
                     queue);
      return;
    }
    const cudaMemcpyKind kind = to_device.is_cpu()     ? cudaMemcpyDeviceToHost
                                : from_device.is_cpu() ? cudaMemcpyHostToDevice
                                                       : cudaMemcpyDeviceToDevice;
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
    const cudaError_t code = cudaEventQuery(raw_event(event));
    if (code == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check_call(code, "cudaEventQuery");
    return true;
  }
  void synchronize_event(void* event) override {
    TARN_CUDA_CALL(cudaEventSynchronize, raw_event(event));
  }
  void throw_late_error(int index) override {
    throw_index_error(index);
  }
  double elapsed_ms(void* start, void* end) override {
    float ms = 0;
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
