// scratch.h - device memory for the length of one call, and single values read back to the host.
#pragma once

#include "tarn/core/allocator.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {

/// Workspace from the caching allocator, in stream order: it may be freed while kernels of the
/// stream still use it.
class Scratch {
 public:
  Scratch(size_t bytes, Stream stream) : device_(stream.device) {
    const MemoryTagGuard tag(MemoryTag::kWorkspace);
    allocation_ = allocate(bytes, stream);
  }
  ~Scratch() { deallocate(allocation_, device_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(allocation_.ptr);
  }

 private:
  Allocation allocation_;
  Device device_;
};

/// Copies `bytes` from the device and waits for the stream.
void read_back(void* to, const void* from, size_t bytes, Stream stream);

template <class T>
T read_back(const T* from, Stream stream) {
  T value;
  read_back(&value, from, sizeof(T), stream);
  return value;
}

}  // namespace tarn::cuda
