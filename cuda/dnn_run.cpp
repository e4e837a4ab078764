// dnn_run.cpp - executes graphs by cuDNN.
//
// Thread safety: any thread may run anything. A handle is lent to one call at a time (cuDNN
// forbids more); a plan is executed by one thread at a time, since cuDNN does not promise that all
// engines allow more. Both are held only while work is queued, not while it runs.
#if TARN_HAVE_CUDNN

#include "tarn/cuda/dnn_run.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tarn/core/backend.h"
#include "tarn/cuda/dnn_settings.h"
#include "tarn/cuda/library.h"
#include "tarn/cuda/scratch.h"

namespace tarn::cuda {
namespace {

using Operands = std::span<const DnnBinding>;

constexpr size_t kMostPlans = 8;  // of one problem
constexpr int kTimedRuns = 3;

// Set when one of the libraries that cuDNN loads by itself, part by part, turned out to be missing.
std::atomic<bool> incomplete{false};

/// Runs f; if cuDNN finds no memory for its own needs, once more with our cache emptied.
template <class F>
void with_room(int device, F f) {
  try {
    return f();
  } catch (const DnnError& e) {
    // What cudnnCreate says if it has no memory for a context of its own.
    if (!e.out_of_memory() && e.status() != CUDNN_STATUS_NOT_INITIALIZED) throw;
  }
  empty_cache(Device(DeviceType::kCUDA, device));
  try {
    f();
  } catch (const DnnError& e) {
    if (!e.out_of_memory()) throw;
    throw OutOfMemoryError(
        tarn::detail::concat(e.what(), "; cuDNN's own needs do not fit beside the memory in use"));
  }
}

/// A handle of the stream's device, bound to the stream.
class HandleLease {
 public:
  explicit HandleLease(Stream stream) : HandleLease(stream.device.index) {
    // The lease is complete by now: if this throws, the destructor gives the handle back.
    dnn_check(dnn_api()->set_stream(handle_, raw_stream(stream)), "cudnnSetStream");
  }
  ~HandleLease() {
    const std::lock_guard lock(mutex());
    pool()[device_].push_back(handle_);
  }
  HandleLease(const HandleLease&) = delete;
  HandleLease& operator=(const HandleLease&) = delete;

  cudnnHandle_t get() const { return handle_; }

 private:
  explicit HandleLease(int device) : device_(device) {
    set_device(device_);
    {
      const std::lock_guard lock(mutex());
      auto& free = pool()[device_];
      if (!free.empty()) {
        handle_ = free.back();
        free.pop_back();
      }
    }
    if (handle_) return;
    with_room(device_, [&] { dnn_check(dnn_api()->create(&handle_), "cudnnCreate"); });
  }

  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  // Never destroyed: the driver may be gone before static destructors run.
  static std::map<int, std::vector<cudnnHandle_t>>& pool() {
    static auto& instance = *new std::map<int, std::vector<cudnnHandle_t>>;
    return instance;
  }

  int device_;
  cudnnHandle_t handle_ = nullptr;
};

/// What is known of one kind of problem. Guarded by its mutex.
struct Entry {
  std::mutex mutex;
  bool made = false;
  bool all = false;               // as many plans were made as there may be
  bool chosen = false;            // the front plan is the one to use
  bool told = false;              // that its workspace did not fit
  bool recorded = false;          // a CUDA graph has taken it; guarded by the cache's mutex
  std::optional<DnnGraph> graph;  // what the plans were made from
  std::vector<DnnPlan> plans;
};

struct Cache {
  std::mutex mutex;
  std::map<DnnProblem, std::shared_ptr<Entry>> entries;
};

Cache& cache() {
  static Cache& instance = *new Cache;
  return instance;
}

// A full cache forgets what no CUDA graph has taken: something makes ever new shapes. A graph needs
// its plans as long as it lives, since their code may go with them; how long that is, is not known
// here.
std::shared_ptr<Entry> entry_of(const DnnProblem& problem, bool recorded) {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  if (c.entries.size() >= dnn_settings().cached_problems && c.entries.count(problem) == 0) {
    std::erase_if(c.entries, [](const auto& item) { return !item.second->recorded; });
  }
  std::shared_ptr<Entry>& entry = c.entries[problem];
  if (!entry) entry = std::make_shared<Entry>();
  if (recorded) entry->recorded = true;
  return entry;
}

/// "conv2d (forward, f32, ...)".
std::string name_of(const DnnProblem& problem) {
  return std::visit(
      [](const auto& p) { return tarn::detail::concat(p.kOperation, " (", p.describe(), ")"); },
      problem);
}

void say_no_plan(const DnnProblem& problem) {
  std::fprintf(stderr, "tarn: cuDNN has no plan for %s; tarn's own kernel runs it\n",
               name_of(problem).c_str());
}

/// One plan, since each takes half a second to make; `all`: those that might do or be faster, too.
void make_entry(Entry& entry, const DnnProblem& problem, cudnnHandle_t handle, int device,
                bool all) {
  const DnnSettings& settings = dnn_settings();
  const DnnTarget target{.handle = handle};
  try {
    const auto make = [&](const auto& p) {
      entry.graph = make_graph(p, target);
      return make_plans(*entry.graph, p.numerics(), target, settings.workspace,
                        all ? kMostPlans : 1);
    };
    with_room(device, [&] { entry.plans = std::visit(make, problem); });
  } catch (const DnnError& e) {
    if (!e.not_supported() && !e.bad_parameter()) throw;
  }
  entry.made = true;
  entry.all = all || entry.plans.empty();
  if (entry.plans.empty()) say_no_plan(problem);
}

void execute(const DnnPlan& plan, Operands operands, void* workspace, cudnnHandle_t handle) {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const DnnBinding& operand : operands) {
    ids.push_back(operand.id);
    pointers.push_back(operand.pointer);
  }
  const auto count = static_cast<int64_t>(ids.size());
  DnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack");
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  dnn_check(dnn_api()->execute(handle, plan.plan.handle(), pack.handle()), "cudnnBackendExecute");
}

void execute(const DnnPlan& plan, Operands operands, Stream stream, cudnnHandle_t handle) {
  if (plan.workspace == 0) return execute(plan, operands, nullptr, handle);
  const Scratch workspace(static_cast<size_t>(plan.workspace), stream);
  execute(plan, operands, workspace.as<void>(), handle);
}

/// Milliseconds a run, or infinity if the plan does not execute.
double time_of(const DnnPlan& plan, Operands operands, Stream stream, cudnnHandle_t handle) try {
  const Scratch workspace(static_cast<size_t>(std::max<int64_t>(plan.workspace, 1)), stream);
  execute(plan, operands, workspace.as<void>(), handle);  // loads its code
  Event start(stream.device, true), end(stream.device, true);
  start.record(stream);
  for (int i = 0; i < kTimedRuns; ++i) {
    execute(plan, operands, workspace.as<void>(), handle);
  }
  end.record(stream);
  end.synchronize();
  return end.elapsed_ms_since(start) / kTimedRuns;
} catch (const DnnError& e) {
  if (!e.not_supported()) throw;
  return std::numeric_limits<double>::infinity();
}

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  TARN_CUDA_CALL(cudaStreamIsCapturing, raw_stream(stream), &status);
  return status != cudaStreamCaptureStatusNone;
}

/// Moves the fastest plan to the front and, if all could be timed, drops the others. Every run
/// computes the whole result, so they run on the operands themselves.
void tune(Entry& entry, Operands operands, Stream stream, cudnnHandle_t handle) {
  size_t best = 0;
  double best_ms = std::numeric_limits<double>::infinity();
  bool all_timed = true;
  for (size_t i = 0; i < entry.plans.size(); ++i) {
    try {
      const double ms = time_of(entry.plans[i], operands, stream, handle);
      if (ms < best_ms) best = i, best_ms = ms;
    } catch (const OutOfMemoryError&) {  // there may be room for its workspace another time
      all_timed = false;
    }
  }
  std::swap(entry.plans[0], entry.plans[best]);
  if (!all_timed) return;
  entry.plans.erase(entry.plans.begin() + 1, entry.plans.end());
  entry.chosen = true;
}

/// False if no plan is left that the GPU can run.
bool run_plans(Entry& entry, const DnnProblem& problem, Operands operands, Stream stream,
               cudnnHandle_t handle) {
  while (!entry.plans.empty()) {
    try {
      execute(entry.plans[0], operands, stream, handle);
      return true;
    } catch (const DnnError& e) {
      if (!e.not_supported()) throw;
      entry.plans.erase(entry.plans.begin());  // made, but the GPU cannot run it
    }
    if (!entry.plans.empty()) continue;
    if (entry.all) {
      say_no_plan(problem);
    } else {
      make_entry(entry, problem, handle, stream.device.index, true);
    }
  }
  return false;
}

bool run(const DnnProblem& problem, Operands operands, Stream stream) {
  const HandleLease handle(stream);
  const bool capturing = is_capturing(stream);
  const std::shared_ptr<Entry> entry = entry_of(problem, capturing);
  const std::lock_guard lock(entry->mutex);
  if (capturing) entry->chosen = true;  // tuning would drop the plan that the graph takes
  if (!entry->made) {
    make_entry(*entry, problem, handle.get(), stream.device.index, dnn_settings().autotune);
  }
  try {
    if (dnn_settings().autotune && !entry->chosen && entry->plans.size() > 1) {
      tune(*entry, operands, stream, handle.get());
    }
    return run_plans(*entry, problem, operands, stream, handle.get());
  } catch (const OutOfMemoryError&) {
    if (entry->plans.empty()) throw;  // not even the plans fit
    // Our own kernels need no workspace: slow, where the alternative is to end.
    if (!std::exchange(entry->told, true)) {
      std::fprintf(stderr,
                   "tarn: cuDNN's workspace of %lld bytes for %s does not fit into the device's "
                   "memory; tarn's own kernel runs it\n",
                   static_cast<long long>(entry->plans[0].workspace), name_of(problem).c_str());
    }
    return false;
  }
}

}  // namespace

bool run_dnn(const DnnProblem& problem, std::span<const DnnBinding> operands, Stream stream) {
  if (incomplete.load(std::memory_order_relaxed)) return false;
  try {
    return run(problem, operands, stream);
  } catch (const DnnError& e) {
    if (e.incomplete() && library_use("TARN_CUDNN") != LibraryUse::kOn) {
      if (!incomplete.exchange(true)) {
        std::fprintf(
            stderr,
            "tarn: cuDNN is not installed completely: %s; convolutions and attention run on "
            "tarn's own kernels, many times slower (TARN_CUDNN=off silences this)\n",
            e.what());
      }
      return false;
    }
    throw DnnError(tarn::detail::concat(e.what(), "; in ", name_of(problem),
                                        "; TARN_CUDNN=off does without cuDNN"),
                   e.status());
  }
}

void forget_dnn_plans() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.entries.clear();
  incomplete.store(false, std::memory_order_relaxed);
}

}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
