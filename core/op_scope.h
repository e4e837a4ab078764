// op_scope.h - the scope around every operation, and who hears of it: profilers, owners in memory
// reports, leak guards.
//
// While nobody listens an OpScope costs two writes to a thread-local pointer and a look at a flag.
#pragma once

#include <atomic>
#include <string_view>

#include "tarn/core/allocator.h"

namespace tarn {

struct KernelWork;

enum class OpKind : uint8_t {
  kForward,
  kBackward,  ///< the gradient formula of a recorded operation
  kModule,    ///< a call of a module
  kRange,     ///< a part of a program that named itself (ProfileRange)
};

/// Hears of operations, kernels, memory and the tape, while added. Calls come from many threads,
/// and an end may come whose begin was before the listener was added. REQUIRES: no call adds or
/// removes a listener, and none throws.
class OpListener {
 public:
  virtual ~OpListener() = default;
  /// `op` lives for ever. recorded: for kBackward the number of the operation on the tape, else 0.
  virtual void begin(const char* /*op*/, OpKind /*kind*/, uint64_t /*recorded*/) {}
  virtual void end(const char* /*op*/) {}
  /// A kernel is about to be started (queued, on a GPU).
  virtual void kernel(const KernelWork& /*work*/) {}
  /// Memory was handed out (bytes > 0) or is given back (bytes < 0).
  virtual void memory(const void* /*ptr*/, int64_t /*bytes*/, Device /*device*/) {}
  /// An operation was put on the tape, or its record is freed.
  virtual void recorded(const char* /*op*/, uint64_t /*number*/) {}
  virtual void forgotten(const char* /*op*/, uint64_t /*number*/) {}
};

/// The caller keeps ownership. remove returns when no thread is in a call of the listener any more.
void add_op_listener(OpListener* listener);
void remove_op_listener(OpListener* listener);

namespace detail {

extern std::atomic<bool> op_listening;
inline bool listening() {
  return __builtin_expect(op_listening.load(std::memory_order_relaxed), 0);
}

// Each calls all listeners.
void tell_begin(const char* op, OpKind kind, uint64_t recorded) noexcept;
void tell_end(const char* op) noexcept;
void tell_kernel(const KernelWork& work) noexcept;
void tell_memory(const void* ptr, int64_t bytes, Device device) noexcept;
void tell_recorded(const char* op, uint64_t number) noexcept;
void tell_forgotten(const char* op, uint64_t number) noexcept;

/// The same text, in memory that lives for ever.
const char* intern(std::string_view text);

}  // namespace detail

/// Marks the calling thread as inside `op` (a string literal).
class OpScope {
 public:
  explicit OpScope(const char* op, OpKind kind = OpKind::kForward, uint64_t recorded = 0)
      : op_(op), outer_(detail::current_op) {
    detail::current_op = op;
    if (detail::listening()) detail::tell_begin(op, kind, recorded);
  }
  ~OpScope() {
    detail::current_op = outer_;
    if (detail::listening()) detail::tell_end(op_);
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  const char* op_;
  const char* outer_;
};

/// Names a part of a program in profiles ("forward", "load batch"); torch.profiler.record_function.
class ProfileRange {
 public:
  explicit ProfileRange(std::string_view name, OpKind kind = OpKind::kRange) {
    if (!detail::listening()) return;
    name_ = detail::intern(name);
    detail::tell_begin(name_, kind, 0);
  }
  ~ProfileRange() {
    if (name_) detail::tell_end(name_);
  }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  const char* name_ = nullptr;
};

}  // namespace tarn
