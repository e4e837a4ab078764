// storage.h - a block of memory that tensors view, with its version counter.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "tarn/core/allocator.h"
#include "tarn/core/device.h"
#include "tarn/core/free_list.h"
#include "tarn/core/intrusive.h"

namespace tarn {

/// Memory shared by a tensor and its views.
/// Invariants: data() is 64-byte aligned unless it came from outside; version() grows with every
/// in-place write through any view, also under no_grad.
class Storage : public RefCounted<Storage> {
 public:
  /// Fresh, uninitialised memory on the current stream of `device`.
  static Ref<Storage> create(size_t bytes, Device device) {
    // Before there is a block to construct in: it would be lost if memory runs out.
    const Allocation memory = allocate(bytes, current_stream(device));
    return Ref<Storage>(new (detail::FreeList<sizeof(Storage)>::take())
                            Storage(memory, bytes, device));
  }
  /// Memory owned by somebody else; `release` (may be empty) runs when the last view is gone.
  static Ref<Storage> wrap(void* data, size_t bytes, Device device, std::function<void()> release);

  void* data() const { return allocation_.ptr; }
  size_t bytes() const { return bytes_; }
  const Allocation& allocation() const { return allocation_; }
  Device device() const { return device_; }
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }
  /// Puts the version above that of the memory this one takes the place of in a tensor: who keeps
  /// something made from the tensor's values sees that they are new ones.
  void follow_version(const Storage& replaced) {
    if (version() <= replaced.version()) {
      version_.store(replaced.version() + 1, std::memory_order_relaxed);
    }
  }
  /// Text of the error that a tensor beginning at this element cannot be read.
  using WhyAway = std::function<std::string(int64_t offset)>;
  /// Gives the memory back while tensors go on viewing the storage. Until adopt() they cannot be
  /// read: Tensor::data() throws ValueError that says `why`. The version stays as it is. Not for
  /// wrapped memory.
  void drop_memory(const WhyAway& why);
  /// Takes the memory of `fresh`, of the same size, which then has none: the values that were there
  /// when memory was dropped.
  void adopt(Storage& fresh);
  bool is_away() const { return why_away_ != nullptr; }
  const WhyAway* why_away() const { return why_away_; }
  /// In-place writes that went on the tape: views taken before them have a stale history.
  uint32_t recorded_writes() const { return recorded_writes_; }
  void bump_recorded_writes() { ++recorded_writes_; }

  static void destroy(Storage* s) {
    s->~Storage();
    detail::FreeList<sizeof(Storage)>::give(s);
  }

 private:
  Storage(const Allocation& memory, size_t bytes, Device device) noexcept
      : allocation_(memory), bytes_(bytes), device_(device) {}
  Storage(void* data, size_t bytes, Device device) noexcept : bytes_(bytes), device_(device) {
    allocation_.ptr = data;
  }
  ~Storage();

  Allocation allocation_;
  size_t bytes_;
  std::function<void()>* release_ = nullptr;
  const WhyAway* why_away_ = nullptr;  // owned
  std::atomic<uint32_t> version_{0};
  uint32_t recorded_writes_ = 0;
  Device device_;
};

}  // namespace tarn
