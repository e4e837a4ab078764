// block_pool.h - BlockPool: the blocks of one device, split and merged inside segments.
//
// A segment is one piece of memory from the system; its blocks form a list in address order. A free
// block merges with free neighbours. Requests up to 1 MiB are cut from 2 MiB segments, up to 10 MiB
// from 20 MiB segments, larger ones get a segment of their own, rounded to 2 MiB. Small and large
// segments keep apart, so that a long-lived small block never pins a large segment. Blocks belong
// to the stream that first asked for them, and return to it.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tarn/core/allocator.h"
#include "tarn/core/backend.h"

namespace tarn::detail {

struct Segment;

struct Block {
  char* ptr = nullptr;
  size_t size = 0;       // of the block
  size_t requested = 0;  // by the caller; 0 while free
  Block* previous = nullptr;
  Block* next = nullptr;  // neighbours in the segment
  Segment* segment = nullptr;
  const char* op = nullptr;  // who asked
  MemoryTag tag = MemoryTag::kOther;
  bool free = false;
  bool slab = false;          // cut into small blocks, which are counted one by one
  std::vector<Stream> users;  // other streams with queued work on it (record_stream)
};

struct Segment {
  char* ptr;
  size_t size;
  void* stream;
  bool small;
  Block* first;
};

/// Counts that a thread gathered on its own and hands over now and then.
struct LedgerDelta {
  int64_t by_tag[kNumMemoryTags] = {};
  int64_t highest = 0;  // the largest running total, for the peak
  int64_t allocations = 0;
};

/// One line of a report: everything that one operation has asked for and that still lives.
struct MemoryOwner {
  std::string op;
  int64_t bytes = 0;
  int64_t blocks = 0;
};

/// Thread safety: all methods. One lock, held for tens of nanoseconds unless the system is asked
/// for memory.
class BlockPool {
 public:
  explicit BlockPool(Device device) : device_(device) {}
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// A block of at least `bytes`, or nullptr if neither the cache nor the system has one. The first
  /// call of a request counts it; a repetition after release_cached() does not.
  Block* take(size_t bytes, void* stream, MemoryTag tag, const char* op, bool slab, bool repeated);
  void give(Block* block) noexcept;
  void retag(Block* block, MemoryTag from, MemoryTag to) noexcept;
  /// Work queued on `stream`, not the block's own, uses the block: once given back, it is not
  /// handed out before that work is done.
  void record_use(Block* block, Stream stream);
  /// Returns segments without a block in use to the system, but for those of streams to keep. Waits
  /// for the device without the lock, so that other threads go on. Does nothing while work of the
  /// device is being recorded, when it must not be waited for.
  void release_cached();
  /// While kept, a stream's segments stay with it: a graph recorded on it writes to their
  /// addresses.
  void keep(void* stream, bool kept);
  void add(const LedgerDelta& delta);

  /// Includes `pending`, the counts that threads have not handed over yet.
  MemoryStats stats(const LedgerDelta& pending);
  void reset_peak(const LedgerDelta& pending);
  void set_limit(size_t bytes);
  size_t limit();
  size_t largest_free();
  /// Live blocks by operation, biggest first. Slabs are not among them.
  std::vector<MemoryOwner> owners();

 private:
  struct Smaller {
    bool operator()(const Block* a, const Block* b) const {
      if (a->segment->stream != b->segment->stream) return a->segment->stream < b->segment->stream;
      return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
    }
  };
  using FreeSet = std::set<Block*, Smaller>;

  /// A block that was given back while other streams may still use it.
  struct Waiting {
    Block* block;
    std::vector<Stream> users;  // whose work has no mark yet
    std::vector<Event> events;  // marks, one for each other user
  };

  void make_free(Block* block) noexcept;
  void mark_uses(Waiting& w) noexcept;
  bool is_over(Waiting& w) noexcept;
  void reclaim_waiting() noexcept;
  void return_cached();
  std::vector<Segment*> take_cached();
  void put_back(const std::vector<Segment*>& segments);
  void return_to_system(const std::vector<Segment*>& segments);
  Block* find(size_t size, void* stream, bool small);
  Block* grow(size_t size, void* stream, bool small);
  void split(Block* block, size_t size);
  void merge_next(Block* block);
  void count(MemoryTag tag, int64_t bytes);
  void note_peak(int64_t allocated);

  const Device device_;
  std::mutex mutex_;
  FreeSet free_[2];  // large, small
  std::vector<Waiting> waiting_;
  bool releasing_ = false;  // a thread is in release_cached()
  std::condition_variable released_;
  std::map<char*, Segment*> segments_;  // in address order
  std::set<void*> kept_;                // streams whose segments are not released
  size_t limit_ = 0;
  MemoryStats stats_;
};

}  // namespace tarn::detail
