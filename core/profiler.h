// profiler.h - the scope around every operation: profiling, and owners in memory reports.
//
// OpScope costs two writes to a thread-local pointer while nothing listens.
#pragma once

#include <atomic>

#include "tarn/core/allocator.h"

namespace tarn {

/// Receives the begin and end of operations while installed. Calls come from many threads.
class OpListener {
 public:
  virtual ~OpListener() = default;
  virtual void begin(const char* op) = 0;
  virtual void end(const char* op) = 0;
};

/// Installs a listener (nullptr: none) and returns the previous one. The caller keeps ownership.
OpListener* set_op_listener(OpListener* listener);

namespace detail {
extern std::atomic<OpListener*> op_listener;
}

/// Marks the calling thread as inside `op` (a string literal).
class OpScope {
 public:
  explicit OpScope(const char* op) : op_(op), outer_(detail::current_op) {
    detail::current_op = op;
    if (__builtin_expect(detail::op_listener.load(std::memory_order_acquire) != nullptr, 0))
      begin();
  }
  ~OpScope() {
    detail::current_op = outer_;
    if (__builtin_expect(listener_ != nullptr, 0)) listener_->end(op_);
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  [[gnu::cold]] void begin() {
    listener_ = detail::op_listener.load(std::memory_order_acquire);
    if (listener_) listener_->begin(op_);
  }
  const char* op_;
  const char* outer_;
  OpListener* listener_ = nullptr;
};

}  // namespace tarn
