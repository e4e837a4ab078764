// stream.cpp - streams as queues of closures, and who runs them when.
//
// Eager: an operation runs inside the call that enqueues it. Lazy: it waits until some call
// synchronises; then streams advance against each other in random order, so that a missing wait
// shows as a wrong result. Event waits and the legacy stream's implicit order are kept in both.
// What waits for another process or thread (nccl.cpp) goes on when that has answered, in both.
#include <atomic>
#include <chrono>
#include <random>

#include "tarn/cuda/emu/runtime.h"

namespace tarn::emu {

namespace {

struct Streams {
  std::vector<std::unique_ptr<CUstream_st>> defaults;  // by device
  std::set<CUstream_st*> created;
  std::condition_variable operation_ended;
  uint64_t next_sequence = 1;
  int outside = 0;  // events that the world outside will complete

  Streams() {
    for (int device = 0; device < settings().devices; ++device) {
      defaults.push_back(std::make_unique<CUstream_st>());
      defaults.back()->device = device;
      defaults.back()->is_default = true;
    }
  }

  template <class Visit>
  void for_each(Visit visit) {
    for (const auto& stream : defaults) visit(*stream);
    for (CUstream_st* stream : created) visit(*stream);
  }

  std::size_t random_below(std::size_t n) {
    if (seed_ != settings().seed) random_.seed(seed_ = settings().seed);
    return random_() % n;
  }

 private:
  unsigned seed_ = settings().seed;
  std::mt19937 random_{seed_};
};

Streams& streams() {
  static Streams* instance = new Streams;  // outlives static destructors that free memory
  return *instance;
}

thread_local int device_of_thread = 0;
std::atomic<uint64_t> contexts{0};  // one bit a device
thread_local bool runs_host_function = false;

// Of two blocking streams of a device, one of them the legacy stream, the older work goes first.
bool comes_before(const Stream& other, const Stream& stream, uint64_t sequence) {
  if (&other == &stream || other.device != stream.device) return false;
  if (!other.blocking || !stream.blocking || (!other.is_default && !stream.is_default))
    return false;
  const bool runs_older = other.running != 0 && other.running < sequence;
  const bool has_older = !other.queue.empty() && other.queue.front().sequence < sequence;
  return runs_older || has_older;
}

bool is_runnable(const Stream& stream) {
  if (stream.running != 0 || stream.queue.empty()) return false;
  const Operation& next = stream.queue.front();
  if (next.wait != nullptr && next.wait->completed < next.version) return false;
  bool runnable = true;
  streams().for_each([&](const Stream& other) {
    if (comes_before(other, stream, next.sequence)) runnable = false;
  });
  return runnable;
}

// `preferred` if it can run and work is eager; else any stream that can.
Stream* pick(Stream* preferred) {
  if (!settings().lazy && preferred != nullptr && is_runnable(*preferred)) return preferred;
  std::vector<Stream*> candidates;
  streams().for_each([&](Stream& stream) {
    if (is_runnable(stream)) candidates.push_back(&stream);
  });
  if (candidates.empty()) return nullptr;
  return candidates[streams().random_below(candidates.size())];
}

void run_front(Stream& stream, Lock& lock) {
  const Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (!operation.run) return;
  stream.running = operation.sequence;
  if (operation.unlocked) {
    lock.unlock();
    runs_host_function = true;
    operation.run();
    runs_host_function = false;
    lock.lock();
  } else {
    operation.run();
  }
  stream.running = 0;
  streams().operation_ended.notify_all();
}

// waits: false: returns when all that is left waits for the world outside.
template <class Done>
void run_until(Done done, Stream* preferred, Lock& lock, bool waits = true) {
  while (!done()) {
    if (Stream* next = pick(preferred)) {
      run_front(*next, lock);
      continue;
    }
    if (streams().outside > 0 && !waits) return;
    bool running_elsewhere = streams().outside > 0;
    streams().for_each([&](const Stream& stream) { running_elsewhere |= stream.running != 0; });
    if (!running_elsewhere) die("streams wait for each other for ever");
    streams().operation_ended.wait(lock);
  }
}

}  // namespace

Stream* stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return default_stream(device_of_thread);
  }
  return streams().created.count(handle) != 0 ? handle : nullptr;
}

Stream* default_stream(int device) {
  return streams().defaults[static_cast<std::size_t>(device)].get();
}

Stream* create_stream(int device, bool blocking, int priority) {
  auto* stream = new CUstream_st;
  stream->device = device;
  stream->blocking = blocking;
  stream->priority = priority;
  streams().created.insert(stream);
  return stream;
}

void destroy_stream(Stream* stream) {
  auto* handle = static_cast<CUstream_st*>(stream);
  streams().created.erase(handle);
  delete handle;
}

int current_device() {
  return device_of_thread;
}
void use_context(int device) {
  contexts.fetch_or(uint64_t{1} << device, std::memory_order_relaxed);
}
bool has_context(int device) {
  return (contexts.load(std::memory_order_relaxed) >> device & 1) != 0;
}
void set_current_device(int device) {
  device_of_thread = device;
}
bool in_host_function() {
  return runs_host_function;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

cudaError_t enqueue(Stream& stream, Operation operation, Lock& lock) {
  if (const cudaError_t error = refuse_implicit_capture(stream)) return fail(error);
  if (stream.capture != nullptr) return fail(capture_operation(stream, std::move(operation)));
  operation.sequence = streams().next_sequence++;
  stream.queue.push_back(std::move(operation));
  if (!settings().lazy) {
    run_until([&stream] { return stream.idle(); }, &stream, lock, false);
  }
  return cudaSuccess;
}

cudaError_t enqueue(Stream& stream, std::function<void()> run, Lock& lock) {
  Operation operation;
  operation.run = std::move(run);
  return enqueue(stream, std::move(operation), lock);
}

void drain(Stream& stream, Lock& lock) {
  run_until([&stream] { return stream.idle(); }, &stream, lock);
  check_red_zones();
}

void drain(const Event& event, Lock& lock) {
  run_until([&event] { return event.completed >= event.recorded; }, nullptr, lock);
  check_red_zones();
}

void drain_device(int device, Lock& lock) {
  run_until(
      [device] {
        bool idle = true;
        streams().for_each([&](const Stream& s) { idle &= s.device != device || s.idle(); });
        return idle;
      },
      nullptr, lock);
  check_red_zones();
}

void expect_outside(Event& event) {
  event.recorded = event.completed + 1;
  ++streams().outside;
}

void complete_outside(Event& event) {
  event.completed = event.recorded;
  --streams().outside;
  streams().operation_ended.notify_all();
}

void advance(Lock& lock) {
  if (Stream* next = pick(nullptr)) run_front(*next, lock);
}

}  // namespace tarn::emu
