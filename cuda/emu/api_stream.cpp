// api_stream.cpp - libcudart's entry points for streams and events.
#include "tarn/cuda/emu/runtime.h"

using namespace tarn::emu;

namespace {

cudaError_t create(cudaStream_t* handle, unsigned flags, int priority) {
  if (handle == nullptr || flags > cudaStreamNonBlocking) return fail(cudaErrorInvalidValue);
  Lock lock = lock_runtime();
  *handle = static_cast<cudaStream_t>(
      create_stream(current_device(), flags != cudaStreamNonBlocking, priority));
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  TARN_EMU_ENTRY(cudaStreamCreate);
  return create(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  TARN_EMU_ENTRY(cudaStreamCreateWithFlags);
  return create(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  TARN_EMU_ENTRY(cudaStreamCreateWithPriority);
  return create(stream, flags, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  TARN_EMU_ENTRY(cudaStreamDestroy);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (stream == nullptr || stream->is_default) return fail(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse_capturing(*stream)) return fail(error);
  drain(*stream, lock);
  destroy_stream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  TARN_EMU_ENTRY(cudaStreamSynchronize);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse_capturing(*stream)) return fail(error);
  if (const cudaError_t error = refuse_implicit_capture(*stream)) return fail(error);
  drain(*stream, lock);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  TARN_EMU_ENTRY(cudaStreamQuery);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  if (stream->idle()) return cudaSuccess;
  advance(lock);
  return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  TARN_EMU_ENTRY(cudaStreamWaitEvent);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (stream == nullptr || event == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (flags != 0) return fail(cudaErrorInvalidValue);
  if (const cudaError_t error = capture_wait(*stream, *event->event)) return fail(error);
  if (stream->capture != nullptr) return cudaSuccess;
  Operation wait;
  wait.wait = event->event;
  wait.version = event->event->recorded;
  return enqueue(*stream, std::move(wait), lock);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  TARN_EMU_ENTRY(cudaLaunchHostFunc);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  Operation call;
  call.run = [function, data] { function(data); };
  call.unlocked = true;
  return enqueue(*stream, std::move(call), lock);
}

cudaError_t cudaDeviceSynchronize() {
  TARN_EMU_ENTRY(cudaDeviceSynchronize);
  Lock lock = lock_runtime();
  if (const cudaError_t error = refuse_device_in_capture(current_device())) return fail(error);
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  drain_device(current_device(), lock);
  return cudaSuccess;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  TARN_EMU_ENTRY(cudaEventCreateWithFlags);
  constexpr unsigned kKnown = cudaEventBlockingSync | cudaEventDisableTiming;
  if (event == nullptr || (flags & ~kKnown) != 0) return fail(cudaErrorInvalidValue);
  *event = new CUevent_st{std::make_shared<Event>()};
  (*event)->event->device = current_device();
  (*event)->event->timing = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  TARN_EMU_ENTRY(cudaEventCreate);
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  TARN_EMU_ENTRY(cudaEventDestroy);
  if (event == nullptr) return fail(cudaErrorInvalidResourceHandle);
  Lock lock = lock_runtime();
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  TARN_EMU_ENTRY(cudaEventRecord);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (stream == nullptr || event == nullptr || event->event->device != stream->device) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (stream->capture != nullptr) {
    capture_record(*stream, *event->event);
    return cudaSuccess;
  }
  event->event->captured = nullptr;
  const uint64_t version = ++event->event->recorded;
  return enqueue(
      *stream,
      [state = event->event, version] {
        state->completed = version;
        state->seconds = now_seconds();
      },
      lock);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  TARN_EMU_ENTRY(cudaEventQuery);
  if (event == nullptr) return fail(cudaErrorInvalidResourceHandle);
  Lock lock = lock_runtime();
  if (const cudaError_t error = refuse_captured(*event->event)) return fail(error);
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  if (event->event->completed >= event->event->recorded) return cudaSuccess;
  advance(lock);
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  TARN_EMU_ENTRY(cudaEventSynchronize);
  if (event == nullptr) return fail(cudaErrorInvalidResourceHandle);
  Lock lock = lock_runtime();
  if (const cudaError_t error = refuse_captured(*event->event)) return fail(error);
  if (const cudaError_t error = refuse_in_capture()) return fail(error);
  const std::shared_ptr<Event> state = event->event;  // may be destroyed while this waits
  drain(*state, lock);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  TARN_EMU_ENTRY(cudaEventElapsedTime);
  if (begin == nullptr || end == nullptr) return fail(cudaErrorInvalidResourceHandle);
  Lock lock = lock_runtime();
  const Event &from = *begin->event, &to = *end->event;
  for (const Event* event : {&from, &to}) {
    if (const cudaError_t error = refuse_captured(*event)) return fail(error);
  }
  if (!from.timing || !to.timing || from.recorded == 0 || to.recorded == 0) {
    return fail(cudaErrorInvalidResourceHandle);
  }
  if (from.completed < from.recorded || to.completed < to.recorded) return cudaErrorNotReady;
  *milliseconds = static_cast<float>((to.seconds - from.seconds) * 1e3);
  return cudaSuccess;
}

}  // extern "C"
