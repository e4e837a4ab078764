// registry.cpp - which backends this build has. The one file of core that knows their names.
#include <mutex>

#include "tarn/core/backend.h"
#include "tarn/core/cpu/backend.h"
#include "tarn/core/cpu/table.h"
#include "tarn/core/error.h"
#include "tarn/core/kernels.h"

namespace tarn {
namespace {

[[noreturn]] void no_cuda() {
  detail::fail<DeviceError>("device: this build of tarn has no CUDA back end; use device cpu");
}

KernelTable make_cpu_table() {
  KernelTable table;
  cpu::fill_kernel_table(table);
  return table;
}

}  // namespace

Backend& backend(DeviceType type) {
  if (type != DeviceType::kCPU) no_cuda();
  return cpu::cpu_backend();
}

bool has_backend(DeviceType type) {
  return type == DeviceType::kCPU;
}

KernelTable& mutable_kernels(DeviceType type) {
  if (type != DeviceType::kCPU) no_cuda();
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
