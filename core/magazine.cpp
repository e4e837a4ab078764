// magazine.cpp - central lists of small blocks, slabs, and the life of a thread's cache.
#include "tarn/core/magazine.h"

#include <algorithm>
#include <vector>

#include "tarn/core/poison.h"

namespace tarn::detail {
namespace {

constexpr size_t kSlab = size_t{64} << 10;

/// Free blocks of one class, and the slabs they were cut from.
struct Central {
  std::mutex mutex;
  std::vector<void*> free;
  std::vector<Block*> slabs;

  /// Puts up to n blocks into out; returns how many.
  int take(int c, void** out, int n) {
    const std::lock_guard lock(mutex);
    if (free.empty() && !add_slab(c)) return 0;
    const int got = std::min<int>(n, static_cast<int>(free.size()));
    for (int i = 0; i < got; ++i) {
      out[i] = free.back();
      free.pop_back();
    }
    return got;
  }
  void give(void* const* blocks, int n) noexcept {
    const std::lock_guard lock(mutex);
    free.insert(free.end(), blocks, blocks + n);
  }
  bool add_slab(int c) {
    const size_t size = class_size(c);
    const size_t bytes = std::max(kSlab / size, size_t{4}) * size;
    Block* slab = cpu_pool().take(bytes, nullptr, MemoryTag::kOther, nullptr, true, false);
    if (!slab) return false;
    slabs.push_back(slab);
    // Lowest addresses are handed out first.
    for (size_t at = bytes; at > 0; at -= size) free.push_back(slab->ptr + at - size);
    return true;
  }
  void release(int c) {
    const std::lock_guard lock(mutex);
    if (slabs.empty()) return;
    std::sort(free.begin(), free.end(), std::greater<>());
    std::erase_if(slabs, [&](Block* slab) {
      const auto inside = [&](void* p) {
        return p >= slab->ptr && p < slab->ptr + slab->requested;
      };
      const auto n = std::count_if(free.begin(), free.end(), inside);
      if (static_cast<size_t>(n) * class_size(c) != slab->requested) return false;
      std::erase_if(free, inside);
      cpu_pool().give(slab);
      return true;
    });
  }
};

Central* central_lists() {
  static Central* const lists = new Central[kSizeClasses];
  return lists;
}

struct Registry {
  std::mutex mutex;
  std::vector<ThreadCache*> caches;
};
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

constinit thread_local bool thread_closed = false;

struct Drainer {
  ~Drainer() {
    delete thread_cache;
    thread_cache = nullptr;
    thread_closed = true;
  }
};

}  // namespace

constinit thread_local ThreadCache* thread_cache = nullptr;

ThreadCache* make_thread_cache() {
  if (thread_closed) return nullptr;
  thread_cache = new ThreadCache;
  static thread_local Drainer drainer;
  (void)drainer;
  return thread_cache;
}

ThreadCache::ThreadCache() {
  for (int c = 0; c < kSizeClasses; ++c) magazines_[c].capacity = magazine_capacity(c);
  const std::lock_guard lock(registry().mutex);
  registry().caches.push_back(this);
}

ThreadCache::~ThreadCache() {
  drain();
  const std::lock_guard lock(registry().mutex);
  hand_over();
  std::erase(registry().caches, this);
}

void* ThreadCache::refill(int c) {
  Magazine& m = magazines_[c];
  m.count = central_lists()[c].take(c, m.items, std::max(1, m.capacity / 2));
  return m.count > 0 ? m.items[--m.count] : nullptr;
}

void ThreadCache::spill(int c) noexcept {
  Magazine& m = magazines_[c];
  const int n = m.count / 2;
  // The oldest blocks go; the newest are still in the processor's cache.
  central_lists()[c].give(m.items, n);
  std::copy(m.items + n, m.items + m.count, m.items);
  m.count -= n;
}

void ThreadCache::drain() noexcept {
  for (int c = 0; c < kSizeClasses; ++c) {
    Magazine& m = magazines_[c];
    if (m.count > 0) central_lists()[c].give(m.items, m.count);
    m.count = 0;
  }
}

void ThreadCache::hand_over() noexcept {
  LedgerDelta delta = counts();
  delta.highest = highest_;
  for (auto& counter : by_tag_) counter.store(0, std::memory_order_relaxed);
  allocations_.store(0, std::memory_order_relaxed);
  total_ = highest_ = 0;
  cpu_pool().add(delta);
}

LedgerDelta ThreadCache::counts() const {
  LedgerDelta delta;
  for (int i = 0; i < kNumMemoryTags; ++i) {
    delta.by_tag[i] = by_tag_[i].load(std::memory_order_relaxed);
  }
  delta.allocations = allocations_.load(std::memory_order_relaxed);
  return delta;
}

void* central_take(int c) {
  void* ptr = nullptr;
  central_lists()[c].take(c, &ptr, 1);
  return ptr;
}

void central_give(int c, void* ptr) noexcept {
  central_lists()[c].give(&ptr, 1);
}

void release_slabs() {
  if (thread_cache) thread_cache->drain();
  for (int c = 0; c < kSizeClasses; ++c) central_lists()[c].release(c);
}

LedgerDelta pending_counts() {
  if (thread_cache) thread_cache->hand_over();
  LedgerDelta sum;
  const std::lock_guard lock(registry().mutex);
  for (const ThreadCache* cache : registry().caches) {
    const LedgerDelta delta = cache->counts();
    for (int i = 0; i < kNumMemoryTags; ++i) sum.by_tag[i] += delta.by_tag[i];
    sum.allocations += delta.allocations;
  }
  return sum;
}

BlockPool& cpu_pool() {
  static BlockPool& pool = *new BlockPool(kCPU);
  return pool;
}

}  // namespace tarn::detail
