// profile_recorder.h - the listener behind a Profiler: notes in a buffer of each thread.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tarn/core/profiler.h"

namespace tarn::detail {

/// The steady clock in ns.
int64_t profile_clock();

/// Listens from construction until take(). Thread safety: threads write to buffers of their own;
/// take() reads them when nobody writes any more.
class ProfileRecorder final : public OpListener {
 public:
  explicit ProfileRecorder(const ProfilerOptions& options);
  ~ProfileRecorder() override;

  void begin(const char* op, OpKind kind, uint64_t recorded) override;
  void end(const char* op) override;
  void kernel(const KernelWork& work) override;
  void memory(const void* ptr, int64_t bytes, Device device) override;
  void recorded(const char* op, uint64_t number) override;

  /// Stops listening; what has ended by now.
  Profile take();

 private:
  struct Buffer;
  Buffer& buffer();

  const bool shapes_, memory_, synchronize_;
  const size_t max_events_;
  const uint64_t generation_;  // tells this recorder from earlier ones at the same address
  const int64_t start_;
  bool listening_ = true;
  std::mutex mutex_;  // buffers_
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace tarn::detail
