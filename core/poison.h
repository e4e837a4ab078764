// poison.h - tells AddressSanitizer which bytes of the allocator's memory are in use.
//
// Cached memory stays mapped, so without this a use after free of it would go unnoticed.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tarn::detail {

inline void poison([[maybe_unused]] void* ptr, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(ptr, bytes);
#endif
}
inline void unpoison([[maybe_unused]] void* ptr, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(ptr, bytes);
#endif
}

}  // namespace tarn::detail
