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
std::string fatal_text;

bool ends_the_context(cudaError_t code) {
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

const Discovery& discovery() {
  static const Discovery& found = *[] {
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
  if (ends_the_context(code)) fatal_text = text;
  throw DeviceError(text);
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
