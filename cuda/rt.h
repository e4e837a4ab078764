// rt.h - the CUDA runtime as kernels and back end see it: checked calls, devices, streams.
//
// The one header through which a .cu file sees CUDA. Under emulation (TARN_CUDA_EMU) the same
// names come from cuda/emu.
#pragma once

#include <cuda_runtime.h>

#include "tarn/core/device.h"
#include "tarn/core/error.h"

namespace tarn::cuda {

/// Throws DeviceError "cuda: <call> failed on cuda:<i>: <text> (<name>, <code>)", or
/// OutOfMemoryError if the device's memory is full. After an error that ends the context, later
/// failures repeat the first one's text.
[[noreturn, gnu::cold]] void fail_call(cudaError_t code, const char* call);

inline void check_call(cudaError_t code, const char* call) {
  if (__builtin_expect(code != cudaSuccess, 0)) fail_call(code, call);
}

/// Runs a CUDA call; any code but cudaSuccess throws.
#define TARN_CUDA_CALL(function, ...) ::tarn::cuda::check_call(function(__VA_ARGS__), #function)

/// True after an error that ends the context: no call recovers from it.
bool context_has_ended() noexcept;

/// Sets what a process that is one of several ranks needs from CUDA, unless the environment says
/// otherwise. Has an effect before the first use of CUDA only. Processes in which WORLD_SIZE or
/// another launcher's word for it is above 1 need not call it.
void expect_ranks();

/// Number of usable devices; 0 without a driver or a GPU.
int device_count();

/// Makes a device current for this thread; costs nothing if it is already.
void set_device(int index);
/// Makes some device current, for what belongs to none: this thread's, or the first that the
/// process used. Making another one current would take hundreds of MB of its memory.
void set_any_device();
/// set_device, and back at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_;
};

/// The properties that launches are shaped by, read once per device.
struct DeviceLimits {
  int multiprocessors = 0;
  int shared_per_block = 0;    ///< bytes, with opt-in
  int compute_capability = 0;  ///< 10 * major + minor
};
const DeviceLimits& limits(int index);

inline cudaStream_t raw_stream(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

/// Dynamic shared memory as an array of T. One per kernel; its size is given at the launch.
#if defined(TARN_CUDA_EMU)
#define TARN_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(::tarn::emu::dynamic_shared())
#else
#define TARN_DYNAMIC_SHARED(T, name)                             \
  extern __shared__ __align__(16) unsigned char tarn_dynamic_[]; \
  T* name = reinterpret_cast<T*>(tarn_dynamic_)
#endif

}  // namespace tarn::cuda
