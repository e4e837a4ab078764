// fault.cpp - settings, diagnostics, call counters, injected failures and CUDA's error state.
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tarn/cuda/emu/runtime.h"

namespace tarn::emu {

namespace {

long environment(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 0) die("%s must be a number; got '%s'", name, text);
  return value;
}

Settings read_settings() {
  Settings s;
  s.devices = static_cast<int>(environment("TARN_EMU_DEVICES", s.devices));
  s.memory_bytes = static_cast<std::size_t>(environment("TARN_EMU_MEMORY_MIB", 4096)) << 20;
  s.lazy = environment("TARN_EMU_LAZY", 0) != 0;
  s.order = static_cast<int>(environment("TARN_EMU_ORDER", 0));
  s.seed = static_cast<unsigned>(environment("TARN_EMU_SEED", 1));
  s.protect = environment("TARN_EMU_PROTECT", 1) != 0;
  s.check_each_kernel = environment("TARN_EMU_CHECK", 0) != 0;
  return s;
}

std::atomic<int> sticky{0};
thread_local cudaError_t last = cudaSuccess;

bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

}  // namespace

Settings& settings() {
  static Settings instance = read_settings();
  return instance;
}

void die(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  char text[2048];
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const char* where = running_thread();
  std::fprintf(stderr, "cuda-emu: %s%s%s\n", where, *where != '\0' ? ": " : "", text);
  std::fflush(nullptr);
  std::abort();
}

struct EntryState {
  std::atomic<uint64_t> calls{0};
  std::map<uint64_t, int> failures;  // call number -> code
};

namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, EntryState> entries;  // nodes never move
  std::atomic<int> failures{0};

  Registry() {
    const char* text = std::getenv("TARN_EMU_FAIL");
    const std::string all = text != nullptr ? text : "";
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t end = std::min(all.find(',', begin), all.size());
      const std::string item = all.substr(begin, end - begin);
      char name[128];
      int nth = 0, code = 0;
      if (std::sscanf(item.c_str(), "%127[^:]:%d=%d", name, &nth, &code) != 3 || nth < 1) {
        die("TARN_EMU_FAIL must read name:nth=code,...; got '%s'", item.c_str());
      }
      entries[name].failures[static_cast<uint64_t>(nth)] = code;
      ++failures;
      begin = end + 1;
    }
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

EntryState& entry_state(const char* name) {
  Registry& r = registry();
  std::lock_guard guard(r.mutex);
  return r.entries[name];
}

}  // namespace

Entry::Entry(const char* name) : state_(entry_state(name)) {}

int Entry::enter() {
  const uint64_t number = ++state_.calls;
  Registry& r = registry();
  if (r.failures.load(std::memory_order_relaxed) == 0) return 0;
  std::lock_guard guard(r.mutex);
  const auto found = state_.failures.find(number);
  return found == state_.failures.end() ? 0 : found->second;
}

void fail_call(const char* name, int nth, int code) {
  EntryState& state = entry_state(name);
  Registry& r = registry();
  std::lock_guard guard(r.mutex);
  state.failures[state.calls + static_cast<uint64_t>(nth)] = code;
  ++r.failures;
}

void clear_failures() {
  Registry& r = registry();
  std::lock_guard guard(r.mutex);
  for (auto& [name, state] : r.entries) state.failures.clear();
  r.failures = 0;
}

uint64_t call_count(const char* name) {
  return entry_state(name).calls;
}

cudaError_t fail(cudaError_t error) {
  if (error == cudaSuccess || error == cudaErrorNotReady) return error;
  last = error;
  if (is_sticky(error)) sticky = error;
  return error;
}

cudaError_t sticky_error() {
  return static_cast<cudaError_t>(sticky.load());
}

cudaError_t last_error(bool clear) {
  if (const cudaError_t error = sticky_error()) return error;
  const cudaError_t error = last;
  if (clear) last = cudaSuccess;
  return error;
}

void reset_errors() {
  sticky = 0;
  last = cudaSuccess;
}

}  // namespace tarn::emu
