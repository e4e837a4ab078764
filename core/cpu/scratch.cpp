// scratch.cpp - per-thread blocks for scratch.h, on huge pages where the system has them.
#include "tarn/core/cpu/scratch.h"

#include <array>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tarn::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

struct Block {
  void* data = nullptr;
  size_t bytes = 0;

  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { std::free(data); }

  void grow(size_t wanted) {
    std::free(data);
    data = nullptr;
    bytes = 0;
    // First touch of a 4 KiB page costs some 12 us; of a huge page, little more in total.
    const size_t align = wanted >= kHugePage / 2 ? kHugePage : 4096;
    const size_t size = (wanted + align - 1) / align * align;
    data = std::aligned_alloc(align, size);
    if (data == nullptr) throw std::bad_alloc();
    bytes = size;
#if defined(__linux__)
    if (align == kHugePage) madvise(data, size, MADV_HUGEPAGE);
#endif
  }
};

thread_local std::array<Block, static_cast<size_t>(ScratchSlot::kCount)> blocks;

}  // namespace

void* scratch(ScratchSlot slot, size_t bytes) {
  Block& block = blocks[static_cast<size_t>(slot)];
  if (block.bytes < bytes || block.data == nullptr) block.grow(bytes > 0 ? bytes : 64);
  return block.data;
}

}  // namespace tarn::cpu
