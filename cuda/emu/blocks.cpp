// blocks.cpp - the blocks that a caching allocator cuts out of device memory.
//
// What lies behind the bytes asked for is filled with a pattern that must survive; free blocks are
// NaN and must stay so. Marks take effect in stream order, as the reuse of blocks does.
#include <algorithm>
#include <cstring>

#include "tarn/cuda/emu/arena.h"

namespace tarn::emu {

namespace {

constexpr std::size_t kFreedBytesChecked = std::size_t{64} << 10;

void check_block(const char* data, const Block& block) {
  const char* end = data + block.block_bytes;
  const char* bad = first_other(data + block.bytes, end, kPattern);
  if (bad == end) return;
  die("byte %td of a block of %zu bytes at %p was written to", bad - data, block.bytes,
      static_cast<const void*>(data));
}

void begin_block(int device, char* data, Block block) {
  Arena& arena = arenas()[static_cast<std::size_t>(device)];
  MemoryAccess access(device);
  const char* end = data + std::min(block.block_bytes, kFreedBytesChecked);
  const char* bad = first_other(data, end, kPoison);
  if (bad != end && !arena.marks_skipped) {
    die("byte %td of a free block of %zu bytes at %p was written to after it was freed", bad - data,
        block.block_bytes, static_cast<void*>(data));
  }
  ASAN_UNPOISON_MEMORY_REGION(data, block.block_bytes);
  std::memset(data + block.bytes, kPattern, block.block_bytes - block.bytes);
  ASAN_POISON_MEMORY_REGION(data + block.bytes, block.block_bytes - block.bytes);
  arena.blocks[data] = block;
}

void end_block(int device, char* data) {
  Arena& arena = arenas()[static_cast<std::size_t>(device)];
  const auto found = arena.blocks.find(data);
  if (found == arena.blocks.end()) return;  // the whole allocation was freed meanwhile
  MemoryAccess access(device);
  check_block(data, found->second);
  ASAN_UNPOISON_MEMORY_REGION(data, found->second.block_bytes);
  std::memset(data, kPoison, found->second.block_bytes);
  ASAN_POISON_MEMORY_REGION(data, found->second.block_bytes);
  arena.blocks.erase(found);
}

// A block from before a graph that the graph frees: the rest of it uses the memory as it likes.
void forget_block(int device, char* data) {
  Arena& arena = arenas()[static_cast<std::size_t>(device)];
  const auto found = arena.blocks.find(data);
  if (found == arena.blocks.end()) return;
  ASAN_UNPOISON_MEMORY_REGION(data, found->second.block_bytes);
  arena.blocks.erase(found);
}

// A graph is replayed many times and its blocks are not: no marks there, and AddressSanitizer lets
// it have `graphs_bytes` for good; 0: the block is freed.
void mark(const char* call, void* block, void* stream, std::size_t graphs_bytes,
          const std::function<void(int device, char* data)>& run) {
  Lock lock = lock_runtime();
  const int device = device_of(block);
  if (device == kNoDevice) die("%s: %p is not device memory", call, block);
  char* data = static_cast<char*>(block);
  // Called by any thread, whose current device may be another one.
  Stream* s = stream ? stream_of(static_cast<cudaStream_t>(stream)) : default_stream(device);
  if (s == nullptr) {
    run(device, data);  // the stream is gone, and with it all its work
  } else if (s->capture == nullptr) {
    enqueue(
        *s, [run, device, data] { run(device, data); }, lock);
  } else {
    arenas()[static_cast<std::size_t>(device)].marks_skipped = true;
    ASAN_UNPOISON_MEMORY_REGION(data, graphs_bytes);
    if (graphs_bytes > 0) return;
    Operation forget;
    forget.run = [device, data] { forget_block(device, data); };
    forget.is_mark = true;
    capture_operation(*s, std::move(forget));
  }
}

}  // namespace

void mark_allocated(void* block, std::size_t bytes, std::size_t block_bytes, void* stream) {
  const Block marked{bytes, std::max(bytes, block_bytes)};
  mark("mark_allocated", block, stream, bytes,
       [marked](int device, char* data) { begin_block(device, data, marked); });
}

void mark_freed(void* block, void* stream) {
  mark("mark_freed", block, stream, 0, end_block);
}

#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize("address")))
#endif
const char*
first_other(const char* begin, const char* end, int value) {
  using Word [[gnu::may_alias, gnu::aligned(1)]] = uint64_t;
  const uint64_t same = 0x0101010101010101u * static_cast<uint64_t>(value);
  while (end - begin >= 8 && *reinterpret_cast<const Word*>(begin) == same) begin += 8;
  while (begin != end && static_cast<unsigned char>(*begin) == value) ++begin;
  return begin;
}

void check_blocks(const Arena& arena) {
  for (const auto& [data, block] : arena.blocks) check_block(data, block);
}

}  // namespace tarn::emu
