// scratch.h - temporary memory of the CPU kernels, kept per thread so that it is touched once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tarn::cpu {

/// Purposes that may be live at the same time on one thread.
enum class ScratchSlot { kBlock, kShared, kLibrary, kPack, kCount };

/// At least `bytes` of 64-byte aligned memory that belongs to the calling thread and this slot
/// until the thread's next call with the same slot. Contents are unspecified. The block only
/// grows; it is released when the thread ends. Throws std::bad_alloc.
void* scratch(ScratchSlot slot, size_t bytes);

inline float* scratch_floats(ScratchSlot slot, int64_t count) {
  return static_cast<float*>(scratch(slot, static_cast<size_t>(count) * sizeof(float)));
}

}  // namespace tarn::cpu
