// leak_guard.h - LeakGuard: what grew between two points of a program.
//
//   LeakGuard leaks;
//   step();          // caches and states are made
//   leaks.mark();
//   step();
//   leaks.check("a training step");   // throws Error: "... grew by 4.00 MiB: conv2d +4.00 MiB ..."
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tarn/core/op_scope.h"

namespace tarn {

/// Growth of what one operation owns: memory it asked for, records of it on the tape.
struct Growth {
  std::string op;
  int64_t bytes = 0, blocks = 0, nodes = 0;
};

/// Counts live memory of tensors (all devices) and live records of the tape while it lives. For
/// tests and debugging: each allocation costs about a microsecond. Thread safety: any thread may
/// compute meanwhile, and what it makes counts.
class LeakGuard final : public OpListener {
 public:
  LeakGuard() { add_op_listener(this); }
  ~LeakGuard() override { remove_op_listener(this); }
  LeakGuard(const LeakGuard&) = delete;
  LeakGuard& operator=(const LeakGuard&) = delete;

  /// Growth counts from here on.
  void mark();
  /// Net growth since the mark; op is empty. Negative: what there was before is gone.
  Growth total() const;
  /// By operation, most bytes first; those that shrank last.
  std::vector<Growth> by_operation() const;
  /// One line for people; "" if neither memory nor the tape grew.
  std::string report() const;
  /// Throws Error with the report, beginning with `what`, if something grew.
  void check(const std::string& what) const;

  void memory(const void* ptr, int64_t bytes, Device device) override;
  void recorded(const char* op, uint64_t number) override;
  void forgotten(const char* op, uint64_t number) override;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Growth> growth_;
  std::unordered_map<const void*, std::string> owner_;  // of memory handed out since construction
};

}  // namespace tarn
