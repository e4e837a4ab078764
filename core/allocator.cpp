// allocator.cpp - allocate and deallocate: thread caches for small host blocks, pools for the rest.
#include "tarn/core/allocator.h"

#include <array>
#include <atomic>

#include "tarn/core/backend.h"
#include "tarn/core/magazine.h"
#include "tarn/core/memory_report.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/poison.h"
#include "tarn/core/retag.h"

namespace tarn {

using detail::BlockPool;

constinit thread_local const char* detail::current_op = nullptr;

namespace {

constinit thread_local MemoryTag current_tag = MemoryTag::kOther;

/// Pools of the devices that are not the CPU, made when first used and kept for ever.
BlockPool& pool_of(Device device) {
  if (device.is_cpu()) return detail::cpu_pool();
  constexpr int kMaxIndex = 128;
  static std::mutex& mutex = *new std::mutex;
  static auto& pools = *new std::array<std::array<BlockPool*, kMaxIndex>, kNumDeviceTypes>{};
  const std::lock_guard lock(mutex);
  BlockPool*& pool = pools[static_cast<int>(device.type)][device.index];
  if (!pool) pool = new BlockPool(device);
  return *pool;
}

detail::LedgerDelta pending(Device device) {
  return device.is_cpu() ? detail::pending_counts() : detail::LedgerDelta();
}

[[gnu::cold, gnu::noinline]] void flush(Device device) {
  if (device.is_cpu()) detail::release_slabs();
  pool_of(device).release_cached();
}

// A small block carries its tag where other blocks carry a pointer; bit 0 tells them apart.
void* small_mark(MemoryTag tag) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(tag) << 1 | 1);
}
bool is_small(const void* block) {
  return reinterpret_cast<uintptr_t>(block) & 1;
}
MemoryTag small_tag(const void* block) {
  return static_cast<MemoryTag>(reinterpret_cast<uintptr_t>(block) >> 1);
}

[[gnu::cold, gnu::noinline]] void* small_again(int c, size_t bytes) {
  flush(kCPU);
  void* ptr = detail::central_take(c);
  if (!ptr) detail::fail_out_of_memory(bytes, kCPU, pool_of(kCPU), pending(kCPU));
  return ptr;
}

/// The counts of a small block of a thread whose cache is already gone.
[[gnu::cold, gnu::noinline]] void count_without_cache(MemoryTag tag, int64_t bytes) {
  detail::LedgerDelta delta;
  delta.by_tag[static_cast<int>(tag)] = bytes;
  delta.allocations = bytes > 0;
  delta.highest = bytes;
  detail::cpu_pool().add(delta);
}

Allocation allocate_small(size_t bytes) {
  const int c = detail::size_class(bytes);
  const MemoryTag tag = current_tag;
  detail::ThreadCache* cache = detail::local_cache();
  void* ptr = __builtin_expect(cache != nullptr, 1) ? cache->take(c) : detail::central_take(c);
  if (__builtin_expect(ptr == nullptr, 0)) ptr = small_again(c, bytes);
  if (__builtin_expect(cache != nullptr, 1)) {
    cache->count_take(tag, bytes);
  } else {
    count_without_cache(tag, static_cast<int64_t>(bytes));
  }
  detail::unpoison(ptr, bytes);
  if (detail::listening()) detail::tell_memory(ptr, static_cast<int64_t>(bytes), kCPU);
  return {ptr, small_mark(tag), bytes};
}

void deallocate_small(const Allocation& a) noexcept {
  const int c = detail::size_class(a.size);
  detail::poison(a.ptr, detail::class_size(c));
  if (detail::ThreadCache* cache = detail::local_cache()) {
    cache->give(c, a.ptr);
    cache->count_give(small_tag(a.block), a.size);
  } else {
    detail::central_give(c, a.ptr);
    count_without_cache(small_tag(a.block), -static_cast<int64_t>(a.size));
  }
}

}  // namespace

Allocation allocate(size_t bytes, Stream stream) {
  if (bytes == 0) return {};
  const Device device = stream.device;
  if (bytes <= detail::kMaxSmallBlock && device.is_cpu()) return allocate_small(bytes);
  // So that the peak sees the small blocks of this thread.
  if (device.is_cpu() && detail::thread_cache) detail::thread_cache->hand_over();
  BlockPool& pool = pool_of(device);
  const char* op = detail::current_op;
  detail::Block* block = pool.take(bytes, stream.handle, current_tag, op, false, false);
  if (!block) {
    flush(device);
    block = pool.take(bytes, stream.handle, current_tag, op, false, true);
    if (!block) detail::fail_out_of_memory(bytes, device, pool, pending(device));
  }
  if (detail::listening()) detail::tell_memory(block->ptr, static_cast<int64_t>(bytes), device);
  return {block->ptr, block, bytes};
}

void deallocate(const Allocation& allocation, Device device) noexcept {
  if (allocation.size == 0) return;
  if (detail::listening()) {
    detail::tell_memory(allocation.ptr, -static_cast<int64_t>(allocation.size), device);
  }
  if (is_small(allocation.block)) return deallocate_small(allocation);
  pool_of(device).give(static_cast<detail::Block*>(allocation.block));
}

// Two threads may keep one tensor at the same time: whoever changes the mark moves the counts, and
// nobody looks at it but atomically. The mark is the allocator's own, and no part of what the
// storage promises not to change.
void retag(const Storage& storage, MemoryTag from, MemoryTag to) noexcept {
  auto& a = const_cast<Allocation&>(storage.allocation());
  if (a.size == 0) return;
  const std::atomic_ref<void*> mark(a.block);
  void* const block = mark.load(std::memory_order_relaxed);
  if (!is_small(block)) {
    return pool_of(storage.device()).retag(static_cast<detail::Block*>(block), from, to);
  }
  void* expected = small_mark(from);
  if (block != expected) return;
  if (!mark.compare_exchange_strong(expected, small_mark(to), std::memory_order_relaxed)) return;
  if (detail::ThreadCache* cache = detail::local_cache()) {
    cache->move_count(from, to, a.size);
  } else {
    detail::LedgerDelta delta;
    delta.by_tag[static_cast<int>(from)] = -static_cast<int64_t>(a.size);
    delta.by_tag[static_cast<int>(to)] = static_cast<int64_t>(a.size);
    detail::cpu_pool().add(delta);
  }
}

void record_use(const Allocation& allocation, Stream stream) {
  if (stream.device.is_cpu() || allocation.size == 0) return;
  pool_of(stream.device).record_use(static_cast<detail::Block*>(allocation.block), stream);
}

MemoryTagGuard::MemoryTagGuard(MemoryTag tag) : previous_(current_tag) {
  current_tag = tag;
}
MemoryTagGuard::~MemoryTagGuard() {
  current_tag = previous_;
}

MemoryStats memory_stats(Device device) {
  const detail::LedgerDelta counts = pending(device);
  return pool_of(device).stats(counts);
}

void reset_peak_memory(Device device) {
  const detail::LedgerDelta counts = pending(device);
  pool_of(device).reset_peak(counts);
}

void empty_cache(Device device) {
  flush(device);
}

void keep_cached(Stream stream, bool kept) {
  pool_of(stream.device).keep(stream.handle, kept);
}

void set_memory_limit(size_t bytes, Device device) {
  pool_of(device).set_limit(bytes);
}

std::string memory_summary(Device device) {
  const detail::LedgerDelta counts = pending(device);
  return detail::describe_memory(device, pool_of(device), counts);
}

}  // namespace tarn
