// arena.h - the address range of one device's memory. Shared by memory.cpp (allocations) and
// blocks.cpp (what a caching allocator makes of them).
#pragma once

#include <iterator>
#include <map>

#include "tarn/cuda/emu/runtime.h"

namespace tarn::emu {

constexpr std::size_t kAlign = 512, kRedZone = 512, kHugePage = std::size_t{2} << 20;
constexpr int kPoison = 0xff, kPattern = 0xca;

inline std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

// A block of a caching allocator, as the device sees it: changed in stream order.
struct Block {
  std::size_t bytes, block_bytes;
};

struct Arena {
  char* base = nullptr;
  std::size_t reserved = 0;
  std::size_t top = 0;                 // bytes from base ever used
  std::size_t used = 0;                // by live allocations
  int open = 0;                        // MemoryAccess alive
  std::map<char*, std::size_t> live;   // data -> bytes asked for
  std::map<char*, std::size_t> holes;  // free ranges below top
  std::map<char*, Block> blocks;
  bool marks_skipped = false;  // while capturing: free blocks may hold anything
  std::vector<bool> peers;

  std::size_t protected_bytes() const { return round_up(top, kHugePage); }
};

std::vector<Arena>& arenas();  // by device

/// The range of a map that begins at or before `pointer` and last, or end().
template <class Map>
auto find_range(Map& map, const void* pointer) {
  auto next = map.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
  return next == map.begin() ? map.end() : std::prev(next);
}

/// First byte in [begin, end) that is not `value`, or end. Also reads what AddressSanitizer
/// forbids.
const char* first_other(const char* begin, const char* end, int value);

void check_blocks(const Arena& arena);

}  // namespace tarn::emu
