// profiler.h - Profiler: where the time goes, as a table and as a trace.
//
//   Profiler profiler({.schedule = ProfilerSchedule{.wait = 1, .warmup = 1, .active = 3}});
//   for (...) {
//     train_step();
//     profiler.step();
//   }
//   profiler.stop();
//   std::cout << profiler.table({.sort_by = "self"});
//   profiler.save_trace("trace.pt.trace.json");  // chrome://tracing, ui.perfetto.dev, TensorBoard
//
// It records every operation (forward, backward, optimizers), calls of modules and ProfileRanges,
// of all threads. Times are those of the host: on a GPU operations are only queued, unless
// `synchronize` makes the profiler wait for each. While no profiler records, it costs a look at a
// flag per operation.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tarn/core/op_scope.h"
#include "tarn/core/shape.h"

namespace tarn {

/// As torch.profiler.schedule: after skip_first steps, cycles of `wait` steps without recording,
/// `warmup` steps that are recorded and thrown away, and `active` steps that count. repeat: number
/// of cycles; 0: no end.
struct ProfilerSchedule {
  int64_t wait = 0, warmup = 0, active = 1, repeat = 0, skip_first = 0;
};

enum class ProfilerAction : uint8_t { kNone, kWarmup, kRecord, kRecordAndSave };
/// What a schedule does in a step, counted from 0. kRecordAndSave: the last active step of a cycle.
ProfilerAction profiler_action(const ProfilerSchedule& schedule, int64_t step);

class Profiler;
namespace detail {
class ProfileRecorder;
}

struct ProfilerOptions {
  std::optional<ProfilerSchedule> schedule{};  ///< none: everything until stop()
  bool shapes = false;       ///< sizes of the operands of every operation's first kernel
  bool memory = true;        ///< allocations: a lane in the trace, a column in the table
  bool synchronize = false;  ///< wait for the GPU after each operation: true times, no overlap
  /// Called when a cycle of the schedule is complete, e.g. to save its trace.
  std::function<void(Profiler&)> on_trace_ready{};
  size_t max_events = 2'000'000;  ///< of each thread; what comes later is counted and left out
};

/// One operation (or module call, or range), finished. Times in ns of the steady clock.
struct ProfileEvent {
  const char* name;
  OpKind kind;
  bool nested;        ///< inside one of the same name and kind
  int thread;         ///< 0: the first that was heard of
  uint64_t recorded;  ///< number on the tape: of the operation, or for kBackward of its forward
  int64_t start, end;
  int64_t self;         ///< without the operations inside
  int64_t allocated;    ///< bytes handed out minus given back, without the operations inside
  double bytes, flops;  ///< of its kernels, without the operations inside
  int32_t sizes;        ///< index into Profile::sizes, or -1
};

struct ProfileMemory {
  int64_t time;
  const void* ptr;
  int64_t bytes;  ///< < 0: given back
  int64_t total;  ///< handed out on the device after this
  Device device;
  int thread;
};

struct ProfileStep {
  int64_t number, start, end;
};

/// What was recorded in one cycle.
struct Profile {
  std::vector<ProfileEvent> events;  ///< of a thread, in the order in which they ended
  std::vector<ProfileMemory> memory;
  std::vector<ProfileStep> steps;
  std::vector<std::vector<Shape>> sizes;
  int threads = 0;
  int64_t start = 0, end = 0;
  size_t left_out = 0;  ///< events beyond max_events
};

/// A line of the table: all calls of one operation.
struct ProfileRow {
  std::string name;   ///< with " backward" for the gradient formula
  std::string sizes;  ///< with by_shape
  int64_t calls = 0;
  double self_s = 0, total_s = 0;
  double bytes = 0, flops = 0, allocated = 0;
};

struct ProfileTableOptions {
  /// "self", "total", "calls", "mean", "bytes", "flops", "memory" (largest first) or "name".
  std::string sort_by = "self";
  int64_t limit = 30;     ///< rows; 0: all
  bool by_shape = false;  ///< a row for each combination of sizes (ProfilerOptions::shapes)
  bool modules = false;   ///< modules and ranges instead of operations
};

/// Several may record at the same time. Not thread-safe itself.
class Profiler {
 public:
  /// Starts at once. Throws ValueError on a schedule with a negative number or without active
  /// steps.
  explicit Profiler(ProfilerOptions options = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// The step is over; the schedule says what the next one is.
  void step();
  /// Ends the recording. A cycle that was begun counts as it is; one that comes after a complete
  /// cycle only with a step of its own.
  void stop();
  /// True while what happens now will count.
  bool recording() const;

  // ---- of the last complete cycle (after stop(), of all that was recorded)
  const Profile& profile() const { return profile_; }
  /// Throws ValueError on a column it does not know.
  std::vector<ProfileRow> rows(const ProfileTableOptions& options = {}) const;
  /// A table for people; times and counts per step if steps were marked.
  std::string table(const ProfileTableOptions& options = {}) const;
  /// Chrome's trace format with lanes for threads, steps and memory.
  void write_trace(std::ostream& out) const;
  /// Throws FileError.
  void save_trace(const std::string& path) const;

 private:
  void begin(ProfilerAction action);
  void finish();

  ProfilerOptions options_;
  std::unique_ptr<detail::ProfileRecorder> recorder_;  // while it listens
  ProfilerAction action_ = ProfilerAction::kNone;
  int64_t step_ = 0, step_start_ = 0;
  bool stopped_ = false;
  std::vector<ProfileStep> steps_;  // of the cycle that runs
  Profile profile_;
};

/// Counts operations of products, convolutions and attention (2 a multiply-add) in all threads
/// while it lives, as torch.utils.flop_counter. On a GPU too: by sizes, as kernels are queued.
class FlopCounter final : public OpListener {
 public:
  FlopCounter() { add_op_listener(this); }
  ~FlopCounter() override { remove_op_listener(this); }
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;
  void kernel(const KernelWork& work) override;
  double flops() const { return flops_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> flops_{0};
};

}  // namespace tarn
