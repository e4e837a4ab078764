// runtime.h - what the emulator's own files share.
//
// Thread safety: one mutex guards all state and is held while device work runs, so kernels of
// several host threads run one after another. Current device and last error are per thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "tarn/cuda/emu/hooks.h"
#include "tarn/cuda/emu/kernel_api.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace tarn::emu {

using Lock = std::unique_lock<std::mutex>;

/// The emulator's mutex, taken.
Lock lock_runtime();

/// Prints "cuda-emu: ..." and aborts: a programming error in a kernel or in its caller.
[[noreturn]] void die(const char* format, ...) __attribute__((format(printf, 1, 2)));

// ---- errors and counting (fault.cpp)

/// One entry point of a library: counts its calls and injects failures.
class Entry {
 public:
  explicit Entry(const char* name);
  int enter();  // the code to fail with, or 0

 private:
  struct EntryState& state_;
};

/// Remembers the error for cudaGetLastError (for good if it is a sticky one) and returns it.
cudaError_t fail(cudaError_t error);
int current_device();
cudaError_t last_error(bool clear);
cudaError_t sticky_error();

/// Notes that the device has a context, which the real runtime makes at the first call that needs
/// one.
void use_context(int device);

/// First line of every CUDA entry point that needs a context.
#define TARN_EMU_ENTRY(name)            \
  TARN_EMU_ENTRY_WITHOUT_CONTEXT(name); \
  ::tarn::emu::use_context(::tarn::emu::current_device())

/// First line of the others.
#define TARN_EMU_ENTRY_WITHOUT_CONTEXT(name)                                            \
  static ::tarn::emu::Entry emu_entry(#name);                                           \
  if (::tarn::emu::in_host_function()) return ::tarn::emu::fail(cudaErrorNotPermitted); \
  if (const int emu_code = emu_entry.enter())                                           \
    return ::tarn::emu::fail(static_cast<cudaError_t>(emu_code));                       \
  if (const cudaError_t emu_code = ::tarn::emu::sticky_error()) return emu_code

// ---- kernels (symbols.cpp, launch.cpp)

/// A __shared__ array: what the symbol table says.
struct SharedArray {
  char* data;
  std::size_t bytes;
  std::string owner;  // mangled name of the function that declares it, without _Z
};

/// What is known of a kernel: from the symbol table, and from cudaFuncSetAttribute.
struct Kernel {
  std::string mangled, name;
  std::vector<const SharedArray*> shared;  // arrays it uses: poisoned before each block
  std::size_t static_shared_bytes = 0;     // of the arrays it declares itself
  std::size_t dynamic_shared_limit = 0;    // 48 KiB in all, or what cudaFuncSetAttribute said
  unsigned launches = 0;
};

constexpr std::size_t kMaxDynamicShared = std::size_t{227} << 10;

Kernel& kernel_of(const void* function);

/// Fills the kernel's __shared__ arrays with NaN; `all` does so with every array there is.
void poison_shared_arrays(const Kernel& kernel, bool all);

/// Adds to `kernel` the arrays of device functions that the last block has written to. Valid after
/// all arrays were poisoned.
void learn_shared_arrays(Kernel& kernel);

/// Runs the whole grid (block.cpp). Device memory must be accessible.
void run_grid(Kernel& kernel, dim3 grid, dim3 block, std::size_t dynamic_shared_bytes,
              const std::function<void()>& body);

/// "kernel k<float>, block (0,0,0), thread (1,0,0)" or "" if this OS thread runs no kernel.
const char* running_thread();

// ---- memory (memory.cpp)

constexpr int kNoDevice = -1;

void* allocate_device(int device, std::size_t bytes);  // null: out of memory
bool free_device(void* pointer);                       // false: not the start of an allocation
std::size_t free_device_bytes(int device);
int device_of(const void* pointer);  // kNoDevice if it is not live device memory
bool is_in_arena(const void* pointer);
bool is_device_range(const void* pointer, std::size_t bytes);
bool can_access(int device, int peer);   // by a kernel
bool enable_peer(int device, int peer);  // false: already enabled

void* allocate_host(std::size_t bytes);
bool free_host(void* pointer);
bool is_pinned(const void* pointer);

/// Aborts if a red zone of device memory was written to.
void check_red_zones();

/// Aborts unless [pointer, pointer + bytes) lies in one live block; `what` names it.
void require_device_range(const void* pointer, std::size_t bytes, const char* what);

/// While alive, device memory may be read and written by this process: that of `device` and of
/// the peers it may access, or of all devices.
class MemoryAccess {
 public:
  explicit MemoryAccess(int device = kNoDevice);
  ~MemoryAccess();
  MemoryAccess(const MemoryAccess&) = delete;
  MemoryAccess& operator=(const MemoryAccess&) = delete;

 private:
  std::vector<int> opened_;
};

// ---- streams, events, capture (stream.cpp, graph.cpp)

struct Event {
  int device = 0;
  bool timing = true;
  uint64_t recorded = 0, completed = 0;  // versions
  double seconds = 0;
  std::shared_ptr<struct CapturedEvent> captured;  // last recorded in a stream under capture
};

struct Operation {
  std::function<void()> run;
  std::shared_ptr<Event> wait;  // runnable once this event has completed `version`
  uint64_t version = 0;
  bool unlocked = false;  // may block on other threads: runs without the emulator's mutex
  bool is_mark = false;   // of the allocator (blocks.cpp), no node of a graph
  uint64_t sequence = 0;
};

struct Stream {
  int device = 0;
  bool is_default = false;  // the legacy stream: ordered with every blocking stream of its device
  bool blocking = true;
  int priority = 0;
  std::deque<Operation> queue;
  uint64_t running = 0;  // sequence number of the operation that runs now, or 0
  std::shared_ptr<struct Capture> capture;

  bool idle() const { return queue.empty() && running == 0; }
};

Stream* stream_of(cudaStream_t handle);  // null: not a live stream
Stream* default_stream(int device);
Stream* create_stream(int device, bool blocking, int priority);
void destroy_stream(Stream* stream);
void set_current_device(int device);

/// Appends to the stream, or to the graph being captured; runs it at once unless lazy, or unless
/// what comes before it waits for the world outside.
cudaError_t enqueue(Stream& stream, Operation operation, Lock& lock);
cudaError_t enqueue(Stream& stream, std::function<void()> run, Lock& lock);

/// Run work until the stream, the event or the device has nothing left; then check red zones.
void drain(Stream& stream, Lock& lock);
void drain(const Event& event, Lock& lock);
void drain_device(int device, Lock& lock);
/// Lazy: runs one operation of any stream.
void advance(Lock& lock);

/// An event that no stream records but another thread or process completes: between the two calls,
/// who waits for it sleeps.
void expect_outside(Event& event);
void complete_outside(Event& event);

bool in_host_function();
double now_seconds();

/// For calls that are not allowed while a stream is captured: invalidates and returns the error.
cudaError_t refuse_in_capture();
/// As refuse_in_capture, for calls that no mode allows while a stream of the device is captured.
cudaError_t refuse_device_in_capture(int device);
cudaError_t refuse_capturing(const Stream& stream);
cudaError_t capture_operation(Stream& stream, Operation operation);
void capture_record(Stream& stream, Event& event);
cudaError_t refuse_captured(const Event& event);
/// Success, or why the wait must not be. Afterwards a wait of a captured stream is done.
cudaError_t capture_wait(Stream& stream, const Event& event);
/// The legacy stream must not be used while a blocking stream of its device is captured.
cudaError_t refuse_implicit_capture(const Stream& stream);

}  // namespace tarn::emu

// The types behind CUDA's handles.
struct CUstream_st : tarn::emu::Stream {};
struct CUevent_st {
  std::shared_ptr<tarn::emu::Event> event;
};
