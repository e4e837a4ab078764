// allocator.h - the caching allocator every device shares, its statistics and its limit.
//
// A block that is freed is kept and handed out again: fresh memory from the system costs a page
// fault per 4 KiB, dozens of times the price of writing to warm memory.
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tarn/core/device.h"

namespace tarn {

/// What memory is used for; reports and out-of-memory errors are grouped by it.
enum class MemoryTag : uint8_t {
  kOther,
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kCommunication,
  kWorkspace
};
inline constexpr int kNumMemoryTags = 7;
const char* memory_tag_name(MemoryTag tag);

/// Allocations of this thread carry `tag` until the guard ends.
class MemoryTagGuard {
 public:
  explicit MemoryTagGuard(MemoryTag tag);
  ~MemoryTagGuard();
  MemoryTagGuard(const MemoryTagGuard&) = delete;
  MemoryTagGuard& operator=(const MemoryTagGuard&) = delete;

 private:
  MemoryTag previous_;
};

/// One allocation: at least `size` bytes at ptr, aligned to 64. block is the allocator's own.
struct Allocation {
  void* ptr = nullptr;
  void* block = nullptr;
  size_t size = 0;
};

/// Returns memory on the stream's device, usable in the order of that stream. Zero bytes give a
/// null pointer. Throws OutOfMemoryError (after the cache was flushed and the request tried again).
Allocation allocate(size_t bytes, Stream stream);
/// Gives an allocation back to the cache. Any thread may do so.
void deallocate(const Allocation& allocation, Device device) noexcept;

/// Tells the allocator that work queued on `stream` uses the memory: it is handed out again only
/// after that work. Work on the stream it was allocated for needs no telling.
void record_use(const Allocation& allocation, Stream stream);

struct MemoryStats {
  int64_t allocated = 0;       ///< bytes handed out now
  int64_t peak_allocated = 0;  ///< since the last reset_peak_memory
  int64_t reserved = 0;        ///< bytes held from the system, handed out or cached
  int64_t peak_reserved = 0;
  int64_t allocations = 0;                   ///< number of allocate calls so far
  int64_t system_calls = 0;                  ///< how many of them had to ask the system
  int64_t by_tag[kNumMemoryTags] = {};       ///< allocated now
  int64_t peak_by_tag[kNumMemoryTags] = {};  ///< at the moment of peak_allocated
};
MemoryStats memory_stats(Device device = kCPU);
void reset_peak_memory(Device device = kCPU);
/// Returns what is cached to the system, apart from what keep_cached() holds and small blocks that
/// other threads keep for themselves (up to 64 KiB each, a few MiB per thread). Does nothing while
/// work of the device is being recorded into a graph.
void empty_cache(Device device = kCPU);
/// While kept, memory cached for `stream` is not returned to the system, neither by empty_cache nor
/// when memory runs out: work that is recorded once and replayed later (a CUDA graph) uses its
/// addresses after the tensors have gone.
void keep_cached(Stream stream, bool kept);
/// Limits the bytes reserved on a device; 0 removes the limit.
void set_memory_limit(size_t bytes, Device device = kCPU);
/// A table of statistics, tags and the biggest owners (the operation that allocated), for people.
std::string memory_summary(Device device = kCPU);

namespace detail {
/// The operation that this thread is in, for owners in reports; set by OpScope (profiler.h).
extern constinit thread_local const char* current_op;
}  // namespace detail

}  // namespace tarn
