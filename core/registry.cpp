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
std::string why_no_cuda() {
  return cuda::why_unavailable();
}
Backend& gpu_backend() {
  return cuda::cuda_backend();
}
void fill_cuda_table(KernelTable& table) {
  cuda::fill_kernel_table(table);
}
#else
std::string why_no_cuda() {
  return "this build of tarn has no CUDA back end (TARN_CUDA=OFF, or no toolkit was found when it "
         "was configured)";
}
[[noreturn]] Backend& gpu_backend() {
  detail::fail<InternalError>("registry: no CUDA back end");
}
void fill_cuda_table(KernelTable&) {}
#endif

void check_cuda() {
  static const std::string& why = *new std::string(why_no_cuda());
  TARN_CHECK_AS(DeviceError, why.empty(), "device: ", why, "; use device cpu");
}

KernelTable make_cuda_table() {
  KernelTable table;
  fill_cuda_table(table);
  return table;
}

KernelTable make_cpu_table() {
  KernelTable table;
  cpu::fill_kernel_table(table);
  return table;
}

}  // namespace

void Backend::note_taken(void*, size_t, size_t, Stream) {}
void Backend::note_given(void*, Stream) noexcept {}

Backend& backend(DeviceType type) {
  if (type == DeviceType::kCPU) return cpu::cpu_backend();
  check_cuda();
  return gpu_backend();
}

bool has_backend(DeviceType type) {
  return why_no_backend(type).empty();
}

std::string why_no_backend(DeviceType type) {
  return type == DeviceType::kCPU ? "" : why_no_cuda();
}

KernelTable& mutable_kernels(DeviceType type) {
  if (type == DeviceType::kCUDA) {
    check_cuda();
    static KernelTable* table = new KernelTable(make_cuda_table());
    return *table;
  }
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
