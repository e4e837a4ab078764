// hooks.h - how the allocator, tests and tools talk to the CUDA emulator.
//
// Environment, read once:
//   TARN_EMU_DEVICES=1          how many devices there are
//   TARN_EMU_MEMORY_MIB=4096    memory of each
//   TARN_EMU_LAZY=0             1: work on a stream waits until something synchronises, and streams
//                               run against each other in random order
//   TARN_EMU_ORDER=0            blocks and threads run 0 forwards, 1 backwards, 2 shuffled
//   TARN_EMU_SEED=1             of every random order
//   TARN_EMU_PROTECT=1          0: the host may touch device memory (two system calls less a
//                               launch)
//   TARN_EMU_CHECK=0            1: overruns are looked for after every kernel, not only when
//                               synchronising
//   TARN_EMU_FAIL=NAME:N=CODE   the n-th call of NAME returns that code; several with commas:
//                               cudaMalloc:3=2,cublasGemmEx:1=13
//   TARN_EMU_KERNELS=FILE       the mangled name of every kernel launched is added to it, one a
//                               line
// What a kernel or its caller does wrong ends the process with a line "cuda-emu: ...".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tarn::emu {

struct Settings {
  int devices = 1;
  std::size_t memory_bytes = std::size_t{4096} << 20;
  bool lazy = false;
  int order = 0;
  unsigned seed = 1;
  bool protect = true;
  bool check_each_kernel = false;
  bool peer_kernels = false;  // kernels may use memory of devices whose peer access is enabled
};

/// The settings in force; a test may change lazy, order, seed, check_each_kernel and peer_kernels
/// while no work is pending.
Settings& settings();

/// A caching allocator hands out `bytes` at `block`, which is `block_bytes` long and used on
/// `stream` (a cudaStream_t). The rest of the block is filled with a pattern that must survive.
void mark_allocated(void* block, std::size_t bytes, std::size_t block_bytes = 0,
                    void* stream = nullptr);

/// The block goes back into the cache: the pattern is checked, the memory is filled with NaN.
void mark_freed(void* block, void* stream = nullptr);

/// True if the kernels are watched by ThreadSanitizer: they take a hundred times longer.
bool watches_races();

/// Looks at every red zone and pattern now; aborts with a message if one was written to.
void check_memory();

/// The nth call from now (1 is the next) of the named entry point returns `code`.
void fail_call(const char* name, int nth, int code);
void clear_failures();

/// Forgets a sticky error such as cudaErrorIllegalAddress, and this thread's last error.
void reset_errors();

/// How often the named entry point was called, e.g. "cudaMalloc", "cublasGemmEx"; kernel launches
/// count as "cudaLaunchKernelEx".
uint64_t call_count(const char* name);

/// True for a vendor library (by the name cuda/library.h uses) that has a stand-in here.
bool stands_in_for(const char* library);
/// Its entry point, as dlsym would find it in the real library; null if there is none.
void* library_symbol(const char* name);

/// True once a call has needed a context on the device: hundreds of MB of a real one's memory.
bool has_context(int device);

struct Launch {
  std::string kernel;  // readable name
  unsigned grid[3], block[3];
  std::size_t dynamic_shared_bytes;
  int device;
  void* stream;
};

/// Keeps a log of kernel launches from now on; stop_launch_log returns it and ends it.
void start_launch_log();
std::vector<Launch> stop_launch_log();

}  // namespace tarn::emu
