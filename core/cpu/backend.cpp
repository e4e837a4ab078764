// backend.cpp - the CPU as a device: memory in huge pages, no queues.
//
// Work on the CPU is done when a call returns, so streams and events have nothing to wait for; an
// event is the time at which it was recorded.
#include "tarn/core/cpu/backend.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

#include "tarn/core/error.h"

namespace tarn::cpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kHugePage = size_t{2} << 20;

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "cpu";
}

std::string instruction_sets() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bf16")) return "avx512_bf16";
  if (__builtin_cpu_supports("avx512f")) return "avx512";
  if (__builtin_cpu_supports("avx2")) return "avx2";
  return "sse2";
#else
  return "generic";
#endif
}

class CpuBackend final : public Backend {
 public:
  int device_count() const override { return 1; }

  DeviceInfo info(int) const override {
    const auto pages = static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
    const auto page = static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
    return {processor_name(), pages * page, static_cast<int>(std::thread::hardware_concurrency()),
            instruction_sets()};
  }

  // Huge pages make the first touch of memory about fifty times cheaper than 4 KiB pages do; they
  // need 2 MiB alignment, so a little more is mapped and the ends are given back.
  void* system_allocate(size_t bytes, int) override {
    const size_t padded = bytes + kHugePage;
    void* raw = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t aligned = (address + kHugePage - 1) & ~(kHugePage - 1);
    const size_t head = aligned - address, tail = padded - head - bytes;
    if (head) munmap(raw, head);
    if (tail) munmap(reinterpret_cast<char*>(aligned) + bytes, tail);
    void* ptr = reinterpret_cast<void*>(aligned);
    if (bytes >= kHugePage) madvise(ptr, bytes, MADV_HUGEPAGE);
    return ptr;
  }
  void system_free(void* ptr, size_t bytes, int) noexcept override { munmap(ptr, bytes); }

  void* pinned_allocate(size_t bytes) override { return std::malloc(bytes); }
  void pinned_free(void* ptr) noexcept override { std::free(ptr); }

  void copy(void* to, Device, const void* from, Device, size_t bytes, Stream) override {
    if (bytes) std::memcpy(to, from, bytes);
  }

  Stream default_stream(int) override { return {kCPU, nullptr}; }
  Stream create_stream(int, int) override { return {kCPU, nullptr}; }
  void destroy_stream(Stream) noexcept override {}
  void synchronize(Stream) override {}
  void synchronize_device(int) override {}

  void* create_event(int, bool) override { return new Clock::time_point(Clock::now()); }
  void destroy_event(void* event) noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  void record_event(void* event, Stream) override {
    *static_cast<Clock::time_point*>(event) = Clock::now();
  }
  void wait_event(void*, Stream) override {}
  bool query_event(void*) override { return true; }
  void synchronize_event(void*) override {}
  double elapsed_ms(void* start, void* end) override {
    const auto span =
        *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(start);
    return std::chrono::duration<double, std::milli>(span).count();
  }
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend* instance = new CpuBackend();
  return *instance;
}

}  // namespace tarn::cpu
