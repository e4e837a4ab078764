// rt.cpp - errors, devices and launches of the CUDA runtime.
#include "tarn/cuda/rt.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <cxxabi.h>

#include "tarn/cuda/backend.h"
#include "tarn/cuda/index_check.h"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/scratch.h"

namespace tarn::cuda {
namespace {

// The first error that no later call recovers from; what follows is its echo.
std::mutex fatal_mutex;
std::string& fatal_text = *new std::string;  // outlives static destructors that free memory

bool ends_the_context(cudaError_t code) {
  constexpr int kContained = 226;  // cudaErrorContained, which older headers lack
  if (static_cast<int>(code) == kContained) return true;
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

thread_local int current_device = -1;  // what this thread last set; -1: not known
std::atomic<int> first_device{-1};     // what the process set first; -1: none yet

std::string kernel_name(const void* kernel) {
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || !mangled) {
    cudaGetLastError();
    return "a kernel";
  }
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  std::string text = status == 0 ? name.get() : mangled;
  constexpr std::string_view kHidden = "(anonymous namespace)::";
  for (size_t at; (at = text.find(kHidden)) != std::string::npos;) text.erase(at, kHidden.size());
  // Without the parameters; parentheses between angle brackets belong to template arguments.
  size_t end = 0;
  for (int depth = 0; end < text.size() && (depth > 0 || text[end] != '('); ++end) {
    depth += (text[end] == '<') - (text[end] == '>');
  }
  text.resize(end);
  return text.starts_with("void ") ? text.substr(5) : text;
}

struct Discovery {
  int count = 0;
  std::string why;
  std::vector<DeviceLimits> limits;
};

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  TARN_CUDA_CALL(cudaDeviceGetAttribute, &value, which, device);
  return value;
}

std::string version_text(int version) {
  return tarn::detail::concat(version / 1000, ".", version % 1000 / 10);
}

std::string explain(cudaError_t code) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaGetLastError();
  if (code == cudaErrorInsufficientDriver) {
    if (driver == 0) return "cuda: no NVIDIA driver is installed";
    return tarn::detail::concat("cuda: the driver supports CUDA ", version_text(driver),
                                ", this build needs ", version_text(runtime),
                                "; update the driver");
  }
  if (code == cudaErrorNoDevice || code == cudaSuccess) return "cuda: no GPU is visible";
  return tarn::detail::concat("cuda: cudaGetDeviceCount failed: ", cudaGetErrorString(code), " (",
                              cudaGetErrorName(code), ", ", static_cast<int>(code), ")");
}

bool is_one_of_several_ranks() {
  for (const char* size : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* text = std::getenv(size);
    if (text && std::atoi(text) > 1) return true;
  }
  return false;
}

const Discovery& discovery() {
  static const Discovery& found = *[] {
    if (is_one_of_several_ranks()) expect_ranks();
    auto* d = new Discovery;
    const cudaError_t code = cudaGetDeviceCount(&d->count);
    if (code != cudaSuccess) d->count = 0;
    if (d->count == 0) d->why = explain(code);
    for (int i = 0; i < d->count; ++i) {
      d->limits.push_back({attribute(cudaDevAttrMultiProcessorCount, i),
                           attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, i),
                           10 * attribute(cudaDevAttrComputeCapabilityMajor, i) +
                               attribute(cudaDevAttrComputeCapabilityMinor, i)});
    }
    return d;
  }();
  return found;
}

}  // namespace

void fail_call(cudaError_t code, const char* call) {
  cudaGetLastError();           // an error that can be recovered from must not show up again
  int device = current_device;  // a lost context would not tell
  if (device < 0 && cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
  const std::string text = tarn::detail::concat(
      "cuda: ", call, " failed on cuda:", device, ": ", cudaGetErrorString(code), " (",
      cudaGetErrorName(code), ", ", static_cast<int>(code), ")");
  const std::lock_guard lock(fatal_mutex);
  if (!fatal_text.empty()) throw DeviceError(text + "; the first error was: " + fatal_text);
  if (code == cudaErrorMemoryAllocation) {
    throw OutOfMemoryError(text + "; CUDA's own needs do not fit beside the memory in use");
  }
  if (ends_the_context(code)) fatal_text = text;
  throw DeviceError(text);
}

bool context_has_ended() noexcept {
  const std::lock_guard lock(fatal_mutex);
  return !fatal_text.empty();
}

void expect_ranks() {
  static std::atomic<bool> done{false};
  if (done.exchange(true)) return;
  // The first launch of a kernel would load it then and there, and wait with the context locked for
  // what runs on the GPU. If that is a collective, and the rank it waits for is in the same place,
  // neither goes on. Costs time at the start, and the memory of all kernels.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  // Streams beyond the usual 8 share a queue, where work for one rank holds up that for another.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int device_count() {
  return discovery().count;
}
const std::string& why_unavailable() {
  return discovery().why;
}

void set_device(int index) {
  if (current_device == index) return;
  if (index < 0 || index >= device_count()) {
    if (device_count() == 0) throw DeviceError(why_unavailable() + "; use device cpu");
    tarn::detail::fail<DeviceError>("cuda: device index must be below ", device_count(),
                                    "; got cuda:", index);
  }
  TARN_CUDA_CALL(cudaSetDevice, index);
  current_device = index;
  int none = -1;
  first_device.compare_exchange_strong(none, index);
}

void set_any_device() {
  if (current_device < 0) set_device(std::max(0, first_device.load()));
}

DeviceGuard::DeviceGuard(int index) : previous_(current_device) {
  set_device(index);
}
DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0 && previous_ != current_device && cudaSetDevice(previous_) == cudaSuccess) {
    current_device = previous_;
  }
}

const DeviceLimits& limits(int index) {
  const Discovery& found = discovery();
  TARN_ASSERT(index >= 0 && index < found.count);
  return found.limits[static_cast<size_t>(index)];
}

// ---- launches

namespace {
std::atomic<uint64_t> launches{0};
}

uint64_t launch_count() {
  return launches.load(std::memory_order_relaxed);
}

namespace {
std::atomic<bool>& blocking_switch() {
  static std::atomic<bool> on = [] {
    const char* text = std::getenv("TARN_CUDA_BLOCKING");
    return text && *text && *text != '0';
  }();
  return on;
}
}  // namespace

bool blocking() {
  return blocking_switch().load(std::memory_order_relaxed);
}
bool set_blocking(bool on) {
  return blocking_switch().exchange(on);
}

namespace {
std::atomic<int64_t>& block_limit() {
  static std::atomic<int64_t> limit = [] {
    const char* text = std::getenv("TARN_CUDA_BLOCKS");
    return std::max<int64_t>(text ? std::atoll(text) : 0, 0);
  }();
  return limit;
}
}  // namespace

int64_t most_blocks(Stream stream) {
  const int64_t limit = block_limit().load(std::memory_order_relaxed);
  return limit > 0 ? limit : int64_t{32} * limits(stream.device.index).multiprocessors;
}
int64_t set_most_blocks(int64_t n) {
  return block_limit().exchange(n);
}

void detail::before_launch(const void* kernel, size_t shared, int device) {
  set_device(device);
  // Without opt-in static and dynamic shared memory have 48 KiB together.
  constexpr size_t kAlwaysAllowed = 16 << 10;
  if (shared <= kAlwaysAllowed) return;
  static std::mutex mutex;
  static auto& allowed = *new std::unordered_map<const void*, std::vector<size_t>>;
  const std::lock_guard lock(mutex);
  std::vector<size_t>& sizes = allowed[kernel];
  sizes.resize(static_cast<size_t>(device_count()));
  size_t& size = sizes[static_cast<size_t>(device)];
  if (shared <= size) return;
  TARN_CUDA_CALL(cudaFuncSetAttribute, kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                 static_cast<int>(shared));
  size = shared;
}

void detail::make_room(int device) {
  cudaGetLastError();
  empty_cache(Device(DeviceType::kCUDA, device));
}

void detail::after_launch(cudaError_t code, const void* kernel, const cudaLaunchConfig_t& config,
                          Stream stream) {
  launches.fetch_add(1, std::memory_order_relaxed);
  if (code == cudaSuccess && blocking()) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(raw_stream(stream), &capturing) == cudaSuccess &&
        capturing == cudaStreamCaptureStatusNone) {
      code = cudaStreamSynchronize(raw_stream(stream));
    }
  }
  if (code == cudaSuccess) return;
  const dim3 g = config.gridDim, b = config.blockDim;
  const std::string call = tarn::detail::concat(
      "launch of ", kernel_name(kernel), " (", g.x, "x", g.y, "x", g.z, " blocks of ", b.x, "x",
      b.y, "x", b.z, " threads, ", config.dynamicSmemBytes, " bytes shared)");
  fail_call(code, call.c_str());
}

// ---- small copies

void read_back(void* to, const void* from, size_t bytes, Stream stream) {
  set_device(stream.device.index);
  TARN_CUDA_CALL(cudaMemcpyAsync, to, from, bytes, cudaMemcpyDeviceToHost, raw_stream(stream));
  TARN_CUDA_CALL(cudaStreamSynchronize, raw_stream(stream));
  throw_index_error(stream.device.index);
}

}  // namespace tarn::cuda
