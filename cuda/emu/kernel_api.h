// kernel_api.h - what a kernel compiled for the host calls: barriers, warp exchanges, launch.
//
// Included by the shadow cuda_runtime.h (so by every .cu file) and by the emulator. A place (file
// and line) travels with every synchronising call, for the diagnostics.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>

#include <cuda_runtime_api.h>

namespace tarn::emu {

/// Where in the source a device function was called.
struct Place {
  const char* file = "";
  unsigned line = 0;

  static constexpr Place current(const char* file = __builtin_FILE(),
                                 unsigned line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Place& other) const {
    return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
  }
};

extern unsigned current_lane;  // of the running device thread, in its warp

/// Dynamic shared memory of the running block, aligned to 1024 bytes.
void* dynamic_shared();

/// __syncthreads. Aborts when some threads of the block are elsewhere or have left the kernel.
void barrier(Place place);

/// __threadfence: with ThreadSanitizer, orders all threads that call it.
void fence();

enum class Vote { kCount, kAnd, kOr };

/// __syncthreads_count, _and, _or.
int barrier_vote(int predicate, Vote vote, Place place);

enum class WarpCall { kShuffle, kUp, kDown, kXor, kBallot, kVote, kSync, kMatch, kReduce };

constexpr std::size_t kLaneBytes = 16;  // the most that one lane contributes

/// What the lanes of a warp contributed to an exchange; only lanes in `mask` are valid.
struct LaneValues {
  unsigned mask;
  alignas(16) unsigned char bytes[32][kLaneBytes];
};

/// All lanes of `mask` meet here; `out` receives what each contributed.
void warp_exchange(WarpCall call, unsigned mask, const void* in, std::size_t size, LaneValues& out,
                   Place place);

/// All lanes of `mask` meet here; `out` receives what lane `source` contributed. A source of
/// kOwnLane copies `in` (a shuffle past the edge keeps the caller's value).
constexpr int kOwnLane = -1;
void warp_pick(WarpCall call, unsigned mask, const void* in, std::size_t size, int source,
               void* out, Place place);

/// Enqueues `body`, which runs the kernel once for the current thread. `pointers` are the kernel's
/// arguments, null where an argument is no pointer; each must be device memory of the device.
cudaError_t launch_kernel(const cudaLaunchConfig_t& config, const void* kernel,
                          const void* const* pointers, std::size_t count,
                          std::function<void()> body);

}  // namespace tarn::emu
