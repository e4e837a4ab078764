// profile_recorder.cpp - a stack of open operations for each thread, and what has ended.
#include "tarn/core/profile_recorder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "tarn/core/backend.h"
#include "tarn/core/error.h"
#include "tarn/core/kernel_work.h"

namespace tarn::detail {
namespace {

std::atomic<uint64_t> next_generation{1};

struct LocalBuffer {
  uint64_t generation = 0;
  void* buffer = nullptr;
};
thread_local LocalBuffer local_buffer;  // of the recorder that this thread met last

/// Waits for what is queued. Errors are left to those who asked for the work.
void wait_for(Device device) noexcept {
  try {
    Backend& system = backend(device.type);
    void* event = system.create_event(device.index, false);
    system.record_event(event, current_stream(device));
    system.synchronize_event(event);
    system.destroy_event(event);
  } catch (const Error&) {  // the device is lost: nothing to wait for
  }
}

struct OpenOperation {
  ProfileEvent event;
  int64_t inner = 0;  // ns of the operations inside
  Device device = kCPU;
};

}  // namespace

struct ProfileRecorder::Buffer {
  int thread = 0;
  std::thread::id owner;
  std::vector<OpenOperation> open;
  std::vector<ProfileEvent> events;
  std::vector<ProfileMemory> memory;
  std::vector<std::vector<Shape>> sizes;
  size_t left_out = 0;
};

int64_t profile_clock() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

ProfileRecorder::ProfileRecorder(const ProfilerOptions& options)
    : shapes_(options.shapes),
      memory_(options.memory),
      synchronize_(options.synchronize),
      max_events_(options.max_events),
      generation_(next_generation.fetch_add(1)),
      start_(profile_clock()) {
  buffer();  // the thread that records is thread 0
  add_op_listener(this);
}

ProfileRecorder::~ProfileRecorder() {
  if (listening_) remove_op_listener(this);
}

ProfileRecorder::Buffer& ProfileRecorder::buffer() {
  if (local_buffer.generation == generation_) return *static_cast<Buffer*>(local_buffer.buffer);
  const std::lock_guard lock(mutex_);
  const auto owner = std::this_thread::get_id();
  auto found = std::find_if(buffers_.begin(), buffers_.end(),
                            [&](const auto& b) { return b->owner == owner; });
  if (found == buffers_.end()) {
    buffers_.push_back(std::make_unique<Buffer>());
    buffers_.back()->thread = static_cast<int>(buffers_.size()) - 1;
    buffers_.back()->owner = owner;
    found = buffers_.end() - 1;
  }
  local_buffer = {generation_, found->get()};
  return **found;
}

void ProfileRecorder::begin(const char* op, OpKind kind, uint64_t recorded) {
  Buffer& b = buffer();
  bool nested = false;
  for (const OpenOperation& o : b.open) {
    nested |= o.event.kind == kind && std::strcmp(o.event.name, op) == 0;
  }
  OpenOperation o{};
  o.event.name = op;
  o.event.kind = kind;
  o.event.nested = nested;
  o.event.thread = b.thread;
  o.event.recorded = recorded;
  o.event.sizes = -1;
  o.event.start = profile_clock();
  b.open.push_back(o);
}

void ProfileRecorder::end(const char* op) {
  Buffer& b = buffer();
  if (b.open.empty() || b.open.back().event.name != op) return;  // it began before the recording
  OpenOperation& o = b.open.back();
  if (synchronize_ && !o.device.is_cpu()) wait_for(o.device);
  ProfileEvent event = o.event;
  event.end = profile_clock();
  event.self = event.end - event.start - o.inner;
  b.open.pop_back();
  if (!b.open.empty()) b.open.back().inner += event.end - event.start;
  if (b.events.size() < max_events_) {
    b.events.push_back(event);
  } else {
    ++b.left_out;
  }
}

void ProfileRecorder::kernel(const KernelWork& work) {
  Buffer& b = buffer();
  if (b.open.empty()) return;
  OpenOperation& o = b.open.back();
  o.event.bytes += work.bytes;
  o.event.flops += work.flops;
  o.device = work.device;
  if (!shapes_ || o.event.sizes >= 0) return;
  o.event.sizes = static_cast<int32_t>(b.sizes.size());
  b.sizes.push_back(work.sizes);
}

void ProfileRecorder::memory(const void* ptr, int64_t bytes, Device device) {
  if (!memory_) return;
  Buffer& b = buffer();
  if (!b.open.empty()) b.open.back().event.allocated += bytes;
  if (b.memory.size() < max_events_) {
    b.memory.push_back({profile_clock(), ptr, bytes, 0, device, b.thread});
  } else {
    ++b.left_out;
  }
}

void ProfileRecorder::recorded(const char* op, uint64_t number) {
  Buffer& b = buffer();
  if (b.open.empty()) return;
  ProfileEvent& event = b.open.back().event;
  if (event.kind == OpKind::kForward && std::strcmp(event.name, op) == 0) event.recorded = number;
}

Profile ProfileRecorder::take() {
  if (listening_) remove_op_listener(this);
  listening_ = false;
  Profile p;
  p.start = start_;
  p.end = profile_clock();
  p.threads = static_cast<int>(buffers_.size());
  for (const auto& b : buffers_) {
    const auto base = static_cast<int32_t>(p.sizes.size());
    for (ProfileEvent& event : b->events) {
      if (event.sizes >= 0) event.sizes += base;
    }
    p.events.insert(p.events.end(), b->events.begin(), b->events.end());
    p.memory.insert(p.memory.end(), b->memory.begin(), b->memory.end());
    p.sizes.insert(p.sizes.end(), b->sizes.begin(), b->sizes.end());
    p.left_out += b->left_out;
  }
  std::stable_sort(p.memory.begin(), p.memory.end(),
                   [](const ProfileMemory& x, const ProfileMemory& y) { return x.time < y.time; });
  // Totals backwards from what is handed out now.
  std::map<std::pair<DeviceType, int>, int64_t> total;
  for (size_t i = p.memory.size(); i-- > 0;) {
    ProfileMemory& m = p.memory[i];
    const auto [at, fresh] = total.try_emplace({m.device.type, m.device.index});
    if (fresh) at->second = memory_stats(m.device).allocated;
    m.total = at->second;
    at->second -= m.bytes;
  }
  return p;
}

}  // namespace tarn::detail
