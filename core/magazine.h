// magazine.h - small host blocks (up to 64 KiB) out of a cache of the calling thread: no lock.
//
// Sizes fall into classes: multiples of 64 bytes up to 4 KiB, then four per doubling. Each thread
// keeps a bounded stack of free blocks (a magazine) per class; a full one hands half of its blocks
// to a central list, an empty one is refilled from there. The central list cuts blocks from slabs,
// which are ordinary blocks of the CPU's BlockPool.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tarn/core/block_pool.h"

namespace tarn::detail {

inline constexpr size_t kMaxSmallBlock = size_t{64} << 10;
inline constexpr int kFineClasses = 64;                    // 64, 128, ... 4096
inline constexpr int kSizeClasses = kFineClasses + 4 * 4;  // 5 KiB, 6, 7, 8, 10, ... 64 KiB
inline constexpr int kMaxMagazine = 64;

/// The class of a request of 1..kMaxSmallBlock bytes.
constexpr int size_class(size_t bytes) {
  const size_t n = bytes - 1;
  if (n < 4096) return static_cast<int>(n >> 6);
  const int log = std::bit_width(n) - 1;  // 12..15
  return kFineClasses + (log - 12) * 4 + static_cast<int>((n >> (log - 2)) & 3);
}
constexpr size_t class_size(int c) {
  if (c < kFineClasses) return static_cast<size_t>(c + 1) << 6;
  const int k = c - kFineClasses;
  return static_cast<size_t>(5 + k % 4) << (10 + k / 4);
}
constexpr int magazine_capacity(int c) {
  const size_t n = (size_t{32} << 10) / class_size(c);
  return n > kMaxMagazine ? kMaxMagazine : n < 4 ? 4 : static_cast<int>(n);
}

/// A thread's own free blocks and counts. Only its thread writes; others may read the counts.
class ThreadCache {
 public:
  void* take(int c) {
    Magazine& m = magazines_[c];
    return m.count > 0 ? m.items[--m.count] : refill(c);
  }
  void give(int c, void* ptr) noexcept {
    Magazine& m = magazines_[c];
    if (__builtin_expect(m.count == m.capacity, 0)) spill(c);
    m.items[m.count++] = ptr;
  }
  void count_take(MemoryTag tag, size_t bytes) {
    bump(by_tag_[static_cast<int>(tag)], static_cast<int64_t>(bytes));
    bump(allocations_, 1);
    total_ += static_cast<int64_t>(bytes);
    if (total_ > highest_) highest_ = total_;
    if (__builtin_expect(total_ > kHandOver, 0)) hand_over();
  }
  void count_give(MemoryTag tag, size_t bytes) noexcept {
    bump(by_tag_[static_cast<int>(tag)], -static_cast<int64_t>(bytes));
    total_ -= static_cast<int64_t>(bytes);
    if (__builtin_expect(total_ < -kHandOver, 0)) hand_over();
  }
  void move_count(MemoryTag from, MemoryTag to, size_t bytes) noexcept {
    bump(by_tag_[static_cast<int>(from)], -static_cast<int64_t>(bytes));
    bump(by_tag_[static_cast<int>(to)], static_cast<int64_t>(bytes));
  }
  /// Adds the counts to the pool's.
  void hand_over() noexcept;
  LedgerDelta counts() const;
  /// Gives every cached block to the central lists.
  void drain() noexcept;
  ThreadCache();
  ~ThreadCache();

 private:
  static constexpr int64_t kHandOver = 256 << 10;
  struct Magazine {
    int count = 0;
    int capacity = 0;
    void* items[kMaxMagazine];
  };
  static void bump(std::atomic<int64_t>& counter, int64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  void* refill(int c);
  void spill(int c) noexcept;

  std::atomic<int64_t> by_tag_[kNumMemoryTags] = {};
  std::atomic<int64_t> allocations_{0};
  int64_t total_ = 0;
  int64_t highest_ = 0;
  Magazine magazines_[kSizeClasses];
};

extern constinit thread_local ThreadCache* thread_cache;
/// Makes the calling thread's cache; nullptr if the thread is already being torn down.
ThreadCache* make_thread_cache();
inline ThreadCache* local_cache() {
  ThreadCache* cache = thread_cache;
  return __builtin_expect(cache != nullptr, 1) ? cache : make_thread_cache();
}

/// For threads without a cache: straight from and to the central list. nullptr: out of memory.
void* central_take(int c);
void central_give(int c, void* ptr) noexcept;
/// Returns slabs without a block in use to the pool.
void release_slabs();
/// Counts that threads have not handed over yet.
LedgerDelta pending_counts();

/// The CPU's pool; lives for ever, so that statics may free memory after main().
BlockPool& cpu_pool();

}  // namespace tarn::detail
