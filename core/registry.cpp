// registry.cpp - which backends this build has. The one file of core that knows their names.
#include <mutex>

#include "tarn/core/backend.h"
#include "tarn/core/cpu/backend.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/error.h"
#include "tarn/core/kernels.h"
#if TARN_HAVE_CUDA
#include "tarn/cuda/backend.h"
#include "tarn/cuda/table.h"
#endif

namespace tarn {
namespace {

#if TARN_HAVE_CUDA
Backend& cuda_or_fail() {
  static Backend& found = *[] {
    Backend* cuda = &cuda::cuda_backend();
    if (cuda->device_count() == 0) {
      detail::fail<DeviceError>("device: ", cuda::why_unavailable(), "; use device cpu");
    }
    return cuda;
  }();
  return found;
}

KernelTable& cuda_table_or_fail() {
  cuda_or_fail();
  static KernelTable* table = [] {
    auto* made = new KernelTable;
    cuda::fill_kernel_table(*made);
    return made;
  }();
  return *table;
}

bool cuda_is_there() {
  return cuda::cuda_backend().device_count() > 0;
}
#else
[[noreturn]] void no_cuda() {
  detail::fail<DeviceError>(
      "device: this build of tarn has no CUDA back end (TARN_CUDA=OFF, or no toolkit was found "
      "when "
      "it was configured); use device cpu");
}
[[noreturn]] Backend& cuda_or_fail() {
  no_cuda();
}
[[noreturn]] KernelTable& cuda_table_or_fail() {
  no_cuda();
}
bool cuda_is_there() {
  return false;
}
#endif

KernelTable make_cpu_table() {
  KernelTable table;
  cpu::fill_kernel_table(table);
  return table;
}

}  // namespace

void Backend::note_taken(void*, size_t, size_t, Stream) {}
void Backend::note_given(void*, Stream) noexcept {}

Backend& backend(DeviceType type) {
  return type == DeviceType::kCPU ? cpu::cpu_backend() : cuda_or_fail();
}

bool has_backend(DeviceType type) {
  return type == DeviceType::kCPU || cuda_is_there();
}

KernelTable& mutable_kernels(DeviceType type) {
  if (type != DeviceType::kCPU) return cuda_table_or_fail();
  static KernelTable* table = new KernelTable(make_cpu_table());  // outlives static destructors
  return *table;
}

const KernelTable& kernels(DeviceType type) {
  return mutable_kernels(type);
}

void detail::missing_kernel(const char* slot, Device device) {
  fail<UnsupportedError>("no ", device.is_cpu() ? "cpu" : "cuda", " kernel for ", slot,
                         " in this build");
}

std::vector<Device> available_devices() {
  std::vector<Device> devices;
  for (DeviceType type : {DeviceType::kCPU, DeviceType::kCUDA}) {
    if (!has_backend(type)) continue;
    const int count = backend(type).device_count();
    for (int i = 0; i < count; ++i) devices.emplace_back(type, i);
  }
  return devices;
}

}  // namespace tarn
