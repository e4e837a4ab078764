// block_pool.cpp - best fit, split and merge.
#include "tarn/core/block_pool.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "tarn/core/capture.h"
#include "tarn/core/error.h"
#include "tarn/core/poison.h"

namespace tarn::detail {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGranularity = 512;
constexpr size_t kSmallLimit = kMiB;
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kMediumLimit = 10 * kMiB;
constexpr size_t kMediumSegment = 20 * kMiB;
constexpr std::chrono::seconds kPatience{30};

size_t round_up(size_t n, size_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// The remainder of a large block is worth keeping only if a large request could ever use it.
bool worth_splitting(size_t rest, bool small) {
  return small ? rest >= kGranularity : rest > kSmallLimit;
}

}  // namespace

Block* BlockPool::take(size_t bytes, void* stream, MemoryTag tag, const char* op, bool slab,
                       bool repeated) {
  if (bytes > SIZE_MAX / 2) return nullptr;  // rounding would overflow
  const size_t size = round_up(bytes, kGranularity);
  const bool small = size <= kSmallLimit;
  const std::lock_guard lock(mutex_);
  if (!slab && !repeated) ++stats_.allocations;
  if (!waiting_.empty()) reclaim_waiting();
  Block* block = find(size, stream, small);
  if (!block) {
    block = grow(size, stream, small);
    if (!block) return nullptr;
    if (!repeated) ++stats_.system_calls;
  }
  free_[small].erase(block);
  split(block, size);
  block->free = false;
  block->requested = bytes;
  block->tag = tag;
  block->op = op;
  block->slab = slab;
  if (!slab) count(tag, static_cast<int64_t>(bytes));
  if (!device_.is_cpu()) {
    backend(device_.type).note_taken(block->ptr, bytes, block->size, {device_, stream});
  } else if (!slab) {
    unpoison(block->ptr, bytes);
  }
  return block;
}

void BlockPool::give(Block* block) noexcept {
  const std::lock_guard lock(mutex_);
  if (device_.is_cpu()) poison(block->ptr, block->size);
  if (!block->slab) count(block->tag, -static_cast<int64_t>(block->requested));
  block->requested = 0;
  if (block->users.empty()) return make_free(block);
  waiting_.push_back({block, std::exchange(block->users, {}), {}});
  mark_uses(waiting_.back());
}

void BlockPool::retag(Block* block, MemoryTag from, MemoryTag to) noexcept {
  const std::lock_guard lock(mutex_);
  if (block->tag != from) return;
  const auto bytes = static_cast<int64_t>(block->requested);
  stats_.by_tag[static_cast<int>(from)] -= bytes;
  stats_.by_tag[static_cast<int>(to)] += bytes;
  block->tag = to;
}

void BlockPool::record_use(Block* block, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (stream.handle == block->segment->stream) return;
  const auto same = std::find(block->users.begin(), block->users.end(), stream);
  if (same == block->users.end()) block->users.push_back(stream);
}

// While one of the streams is being recorded there is nothing to mark: its work has no end that an
// event could tell of.
void BlockPool::mark_uses(Waiting& w) noexcept {
  try {
    while (!w.users.empty() && !is_capturing(w.users.back())) {
      Event event(w.users.back().device);
      event.record(w.users.back());
      w.events.push_back(std::move(event));
      w.users.pop_back();
    }
  } catch (const Error&) {  // another time, unless the device is lost, and its work with it
    if (backend(device_.type).is_lost()) w.users.clear();
  }
}

bool BlockPool::is_over(Waiting& w) noexcept {
  mark_uses(w);
  std::erase_if(w.events, [&](const Event& event) {
    try {
      return event.query();
    } catch (const Error&) {  // any other error says nothing about the work
      return backend(device_.type).is_lost();
    }
  });
  return w.users.empty() && w.events.empty();
}

void BlockPool::reclaim_waiting() noexcept {
  if (is_capturing(device_)) return;
  std::erase_if(waiting_, [&](Waiting& w) {
    if (!is_over(w)) return false;
    make_free(w.block);
    return true;
  });
}

void BlockPool::make_free(Block* block) noexcept {
  if (!device_.is_cpu()) {
    backend(device_.type).note_given(block->ptr, {device_, block->segment->stream});
  }
  block->free = true;
  FreeSet& set = free_[block->segment->small];
  if (block->next && block->next->free) {
    set.erase(block->next);
    merge_next(block);
  }
  if (block->previous && block->previous->free) {
    block = block->previous;
    set.erase(block);
    merge_next(block);
  }
  set.insert(block);
}

Block* BlockPool::find(size_t size, void* stream, bool small) {
  Segment key_segment{nullptr, 0, stream, small, nullptr};
  Block key;
  key.size = size;
  key.segment = &key_segment;
  const auto found = free_[small].lower_bound(&key);
  if (found == free_[small].end() || (*found)->segment->stream != stream) return nullptr;
  return *found;
}

Block* BlockPool::grow(size_t size, void* stream, bool small) {
  const size_t exact = round_up(size, kSmallSegment);
  size_t bytes = small ? kSmallSegment : size <= kMediumLimit ? kMediumSegment : exact;
  const auto fits = [&](size_t b) {
    return limit_ == 0 || static_cast<size_t>(stats_.reserved) + b <= limit_;
  };
  if (!fits(bytes)) bytes = exact;
  if (!fits(bytes)) return nullptr;
  Backend& system = backend(device_.type);
  void* ptr = system.system_allocate(bytes, device_.index);
  if (!ptr && bytes != exact) ptr = system.system_allocate(bytes = exact, device_.index);
  if (!ptr) return nullptr;
  if (device_.is_cpu()) poison(ptr, bytes);

  auto* segment = new Segment{static_cast<char*>(ptr), bytes, stream, small, nullptr};
  auto* block = new Block;
  block->ptr = segment->ptr;
  block->size = bytes;
  block->segment = segment;
  block->free = true;
  segment->first = block;
  segments_[segment->ptr] = segment;
  free_[small].insert(block);
  stats_.reserved += static_cast<int64_t>(bytes);
  stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
  return block;
}

void BlockPool::split(Block* block, size_t size) {
  const bool small = block->segment->small;
  if (!worth_splitting(block->size - size, small)) return;
  auto* rest = new Block;
  rest->ptr = block->ptr + size;
  rest->size = block->size - size;
  rest->segment = block->segment;
  rest->previous = block;
  rest->next = block->next;
  rest->free = true;
  if (rest->next) rest->next->previous = rest;
  block->next = rest;
  block->size = size;
  free_[small].insert(rest);
}

void BlockPool::merge_next(Block* block) {
  Block* gone = block->next;
  block->size += gone->size;
  block->next = gone->next;
  if (block->next) block->next->previous = block;
  delete gone;
}

// Out of all lists, so that nobody gets a block of them. REQUIRES: the lock.
std::vector<Segment*> BlockPool::take_cached() {
  std::vector<Segment*> cached;
  std::erase_if(segments_, [&](const auto& entry) {
    Segment* segment = entry.second;
    if (!segment->first->free || segment->first->next || kept_.contains(segment->stream)) {
      return false;
    }
    free_[segment->small].erase(segment->first);
    cached.push_back(segment);
    return true;
  });
  return cached;
}

void BlockPool::put_back(const std::vector<Segment*>& segments) {
  const std::lock_guard lock(mutex_);
  for (Segment* segment : segments) {
    segments_[segment->ptr] = segment;
    free_[segment->small].insert(segment->first);
  }
}

void BlockPool::return_to_system(const std::vector<Segment*>& segments) {
  Backend& system = backend(device_.type);
  int64_t bytes = 0;
  for (Segment* segment : segments) {
    if (device_.is_cpu()) unpoison(segment->ptr, segment->size);
    system.system_free(segment->ptr, segment->size, device_.index);
    bytes += static_cast<int64_t>(segment->size);
    delete segment->first;
    delete segment;
  }
  const std::lock_guard lock(mutex_);
  stats_.reserved -= bytes;
}

// The waiting is done without the lock: the work may wait for another rank, and the thread that is
// to notice that the rank is gone may need memory.
void BlockPool::return_cached() {
  Backend& system = backend(device_.type);
  std::unique_lock lock(mutex_);
  if (!waiting_.empty()) {
    lock.unlock();
    system.synchronize_device(device_.index);
    lock.lock();
    reclaim_waiting();
  }
  const std::vector<Segment*> cached = take_cached();
  lock.unlock();
  if (cached.empty()) return;
  try {
    system.synchronize_device(device_.index);  // work that reads this memory may be queued
  } catch (...) {
    put_back(cached);
    throw;
  }
  return_to_system(cached);
}

void BlockPool::release_cached() {
  if (is_capturing(device_)) return;
  {
    // Who comes second waits for what the first returns. Not for ever: the device may be waiting
    // for a rank that is gone until this very thread ends that.
    std::unique_lock lock(mutex_);
    if (!released_.wait_for(lock, kPatience, [&] { return !releasing_; })) return;
    releasing_ = true;
  }
  const auto end = [this] {
    const std::lock_guard lock(mutex_);
    releasing_ = false;
    released_.notify_all();
  };
  try {
    return_cached();
  } catch (...) {
    end();
    throw;
  }
  end();
}

void BlockPool::keep(void* stream, bool kept) {
  const std::lock_guard lock(mutex_);
  if (kept) {
    kept_.insert(stream);
  } else {
    kept_.erase(stream);
  }
}

void BlockPool::count(MemoryTag tag, int64_t bytes) {
  stats_.allocated += bytes;
  stats_.by_tag[static_cast<int>(tag)] += bytes;
  note_peak(stats_.allocated);
}

void BlockPool::note_peak(int64_t allocated) {
  if (allocated <= stats_.peak_allocated) return;
  stats_.peak_allocated = allocated;
  std::copy(std::begin(stats_.by_tag), std::end(stats_.by_tag), std::begin(stats_.peak_by_tag));
}

void BlockPool::add(const LedgerDelta& delta) {
  const std::lock_guard lock(mutex_);
  const int64_t before = stats_.allocated;
  for (int i = 0; i < kNumMemoryTags; ++i) {
    stats_.by_tag[i] += delta.by_tag[i];
    stats_.allocated += delta.by_tag[i];
  }
  stats_.allocations += delta.allocations;
  note_peak(before + delta.highest);
}

MemoryStats BlockPool::stats(const LedgerDelta& pending) {
  const std::lock_guard lock(mutex_);
  MemoryStats s = stats_;
  for (int i = 0; i < kNumMemoryTags; ++i) {
    s.by_tag[i] += pending.by_tag[i];
    s.allocated += pending.by_tag[i];
  }
  s.allocations += pending.allocations;
  if (s.allocated > s.peak_allocated) {
    s.peak_allocated = s.allocated;
    std::copy(std::begin(s.by_tag), std::end(s.by_tag), std::begin(s.peak_by_tag));
  }
  return s;
}

void BlockPool::reset_peak(const LedgerDelta& pending) {
  const std::lock_guard lock(mutex_);
  stats_.peak_reserved = stats_.reserved;
  stats_.peak_allocated = stats_.allocated;
  for (int i = 0; i < kNumMemoryTags; ++i) {
    stats_.peak_allocated += pending.by_tag[i];
    stats_.peak_by_tag[i] = stats_.by_tag[i] + pending.by_tag[i];
  }
}

void BlockPool::set_limit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

size_t BlockPool::limit() {
  const std::lock_guard lock(mutex_);
  return limit_;
}

size_t BlockPool::largest_free() {
  const std::lock_guard lock(mutex_);
  size_t largest = 0;
  for (const FreeSet& set : free_) {
    for (const Block* block : set) largest = std::max(largest, block->size);
  }
  return largest;
}

std::vector<MemoryOwner> BlockPool::owners() {
  const std::lock_guard lock(mutex_);
  std::unordered_map<std::string, MemoryOwner> by_op;
  for (const auto& [ptr, segment] : segments_) {
    for (const Block* block = segment->first; block; block = block->next) {
      if (block->free || block->slab || block->requested == 0) continue;
      MemoryOwner& owner = by_op[block->op ? block->op : "(no operation)"];
      owner.bytes += static_cast<int64_t>(block->requested);
      ++owner.blocks;
    }
  }
  std::vector<MemoryOwner> owners;
  for (auto& [op, owner] : by_op) {
    owner.op = op;
    owners.push_back(owner);
  }
  std::sort(owners.begin(), owners.end(), [](const MemoryOwner& a, const MemoryOwner& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.op < b.op;
  });
  return owners;
}

}  // namespace tarn::detail
