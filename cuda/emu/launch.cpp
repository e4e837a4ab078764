// launch.cpp - kernel launches: what CUDA checks, what the emulator checks beyond, and the log.
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "tarn/cuda/emu/runtime.h"

namespace tarn::emu {

namespace {

std::optional<std::vector<Launch>> launch_log;

// For tests/gpu/unreached. One write, so that processes at the same time do not mix.
void note_first_launch(const Kernel& kernel) {
  static const char* const path = std::getenv("TARN_EMU_KERNELS");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "a");
  if (file == nullptr) die("TARN_EMU_KERNELS: cannot write '%s'", path);
  std::fprintf(file, "%s\n", kernel.mangled.c_str());
  std::fclose(file);
}

// CUDA's limits (compute capability 9.0).
bool is_valid_shape(dim3 grid, dim3 block) {
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  return grid.x != 0 && grid.y != 0 && grid.z != 0 && threads != 0 && grid.x <= 2147483647u &&
         grid.y <= 65535 && grid.z <= 65535 && block.x <= 1024 && block.y <= 1024 &&
         block.z <= 64 && threads <= 1024;
}

// Cooperative launches and clusters need blocks that run at the same time.
bool has_unsupported_attribute(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const auto& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeCooperative && attribute.val.cooperative != 0)
      return true;
    if (attribute.id == cudaLaunchAttributeClusterDimension) return true;
  }
  return false;
}

void check_pointers(const Kernel& kernel, const void* const* pointers, std::size_t count,
                    int device) {
  for (std::size_t i = 0; i < count; ++i) {
    const void* pointer = pointers[i];
    if (pointer == nullptr || is_pinned(pointer)) continue;
    const int owner = device_of(pointer);
    if (owner == kNoDevice) {
      die("kernel %s: argument %zu is %p, which is not %s", kernel.name.c_str(), i, pointer,
          is_in_arena(pointer) ? "live device memory (freed?)" : "device memory");
    }
    if (owner != device && !can_access(device, owner)) {
      die("kernel %s: argument %zu is memory of device %d, the stream is of device %d",
          kernel.name.c_str(), i, owner, device);
    }
  }
}

}  // namespace

cudaError_t launch_kernel(const cudaLaunchConfig_t& config, const void* function,
                          const void* const* pointers, std::size_t count,
                          std::function<void()> body) {
  TARN_EMU_ENTRY(cudaLaunchKernelEx);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(config.stream);
  if (stream == nullptr || stream->device != current_device()) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (!is_valid_shape(config.gridDim, config.blockDim)) return fail(cudaErrorInvalidConfiguration);
  if (has_unsupported_attribute(config)) return fail(cudaErrorNotSupported);
  Kernel& kernel = kernel_of(function);
  if (config.dynamicSmemBytes > kernel.dynamic_shared_limit) return fail(cudaErrorInvalidValue);
  const int device = stream->device;
  check_pointers(kernel, pointers, count, device);
  if (kernel.launches == 0) note_first_launch(kernel);
  if (launch_log) {
    const dim3 g = config.gridDim, b = config.blockDim;
    launch_log->push_back({kernel.name,
                           {g.x, g.y, g.z},
                           {b.x, b.y, b.z},
                           config.dynamicSmemBytes,
                           device,
                           config.stream});
  }
  return enqueue(
      *stream,
      [&kernel, device, grid = config.gridDim, block = config.blockDim,
       shared = config.dynamicSmemBytes, body = std::move(body)] {
        {
          MemoryAccess access(device);
          run_grid(kernel, grid, block, shared, body);
        }
        if (settings().check_each_kernel) check_red_zones();
      },
      lock);
}

void start_launch_log() {
  Lock lock = lock_runtime();
  launch_log.emplace();
}

std::vector<Launch> stop_launch_log() {
  Lock lock = lock_runtime();
  std::vector<Launch> log = launch_log ? std::move(*launch_log) : std::vector<Launch>();
  launch_log.reset();
  return log;
}

}  // namespace tarn::emu
