// graph.cpp - stream capture and graphs: operations are recorded as closures and replayed.
//
// Fork and join are followed with vector clocks: of every stream in a capture it is known how much
// of every other one it has waited for, so a branch that was not joined is found.
#include <algorithm>
#include <map>
#include <thread>

#include "tarn/cuda/emu/runtime.h"

namespace tarn::emu {

using Clock = std::map<const Stream*, std::size_t>;  // stream -> operations waited for

struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread = std::this_thread::get_id();
  Stream* origin = nullptr;
  bool invalid = false;
  std::vector<Operation> operations;
  std::map<Stream*, Clock> members;  // a stream's own entry: how many operations it has
};

struct CapturedEvent {
  std::weak_ptr<Capture> capture;
  Clock clock;
};

namespace {

std::vector<std::shared_ptr<Capture>> captures;  // active
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, count] : from) into[stream] = std::max(into[stream], count);
}

bool forbids_unsafe_calls(const Capture& capture) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  if (capture.mode == cudaStreamCaptureModeRelaxed) return false;
  const bool own = capture.thread == std::this_thread::get_id();
  return own || (capture.mode == cudaStreamCaptureModeGlobal &&
                 thread_mode == cudaStreamCaptureModeGlobal);
}

bool all_joined(const Capture& capture) {
  const Clock& origin = capture.members.at(capture.origin);
  return std::all_of(capture.members.begin(), capture.members.end(), [&](const auto& member) {
    const std::size_t count = member.second.at(member.first);
    const auto seen = origin.find(member.first);
    return seen != origin.end() && seen->second >= count;
  });
}

}  // namespace

cudaError_t refuse_in_capture() {
  cudaError_t error = cudaSuccess;
  for (const auto& capture : captures) {
    if (!forbids_unsafe_calls(*capture)) continue;
    capture->invalid = true;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

cudaError_t refuse_device_in_capture(int device) {
  cudaError_t error = cudaSuccess;
  for (const auto& capture : captures) {
    for (const auto& [member, clock] : capture->members) {
      if (member->device != device) continue;
      capture->invalid = true;
      error = cudaErrorStreamCaptureUnsupported;
    }
  }
  return error;
}

cudaError_t refuse_capturing(const Stream& stream) {
  if (stream.capture == nullptr) return cudaSuccess;
  stream.capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_implicit_capture(const Stream& stream) {
  if (!stream.is_default || captures.empty()) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (const auto& capture : captures) {
    for (const auto& [member, clock] : capture->members) {
      if (member->device != stream.device || !member->blocking) continue;
      capture->invalid = true;
      error = cudaErrorStreamCaptureImplicit;
    }
  }
  return error;
}

cudaError_t capture_operation(Stream& stream, Operation operation) {
  Capture& capture = *stream.capture;
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  capture.operations.push_back(std::move(operation));
  ++capture.members[&stream][&stream];
  return cudaSuccess;
}

void capture_record(Stream& stream, Event& event) {
  event.captured = std::make_shared<CapturedEvent>(
      CapturedEvent{stream.capture, stream.capture->members[&stream]});
}

// Also when the capture is over: until the event is recorded in a stream that runs.
cudaError_t refuse_captured(const Event& event) {
  if (event.captured == nullptr) return cudaSuccess;
  if (const auto capture = event.captured->capture.lock()) capture->invalid = true;
  return cudaErrorCapturedEvent;
}

cudaError_t capture_wait(Stream& stream, const Event& event) {
  const auto capture = event.captured != nullptr ? event.captured->capture.lock() : nullptr;
  if (capture == nullptr) {  // an event from before the capture, or of one that is over
    if (event.captured != nullptr) {
      if (stream.capture != nullptr) stream.capture->invalid = true;
      return cudaErrorCapturedEvent;
    }
    if (stream.capture == nullptr || event.recorded == 0) return cudaSuccess;
    stream.capture->invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (stream.capture != nullptr && stream.capture != capture) {
    stream.capture->invalid = capture->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream.is_default) {
    capture->invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  stream.capture = capture;
  Clock& clock = capture->members[&stream];
  clock.try_emplace(&stream, 0);
  merge(clock, event.captured->clock);
  return cudaSuccess;
}

}  // namespace tarn::emu

struct CUgraph_st {
  std::vector<tarn::emu::Operation> operations;
};
struct CUgraphExec_st {
  std::vector<tarn::emu::Operation> operations;
};

using namespace tarn::emu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  TARN_EMU_ENTRY(cudaStreamBeginCapture);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (stream->is_default) return fail(cudaErrorStreamCaptureUnsupported);
  if (stream->capture != nullptr) return fail(cudaErrorIllegalState);
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->origin = stream;
  capture->members[stream][stream] = 0;
  stream->capture = capture;
  captures.push_back(std::move(capture));
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  TARN_EMU_ENTRY(cudaStreamEndCapture);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (graph == nullptr) return fail(cudaErrorInvalidValue);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return fail(cudaErrorIllegalState);
  *graph = nullptr;
  const bool wrong_thread = capture->mode != cudaStreamCaptureModeRelaxed &&
                            capture->thread != std::this_thread::get_id();
  if (wrong_thread) return fail(cudaErrorStreamCaptureWrongThread);
  if (capture->origin != stream) {
    capture->invalid = true;
    return fail(cudaErrorStreamCaptureUnmatched);
  }
  for (const auto& [member, clock] : capture->members) member->capture = nullptr;
  std::erase(captures, capture);
  if (capture->invalid) return fail(cudaErrorStreamCaptureInvalidated);
  if (!all_joined(*capture)) return fail(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->operations)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  TARN_EMU_ENTRY(cudaStreamIsCapturing);
  Lock lock = lock_runtime();
  const Stream* stream = stream_of(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  TARN_EMU_ENTRY_WITHOUT_CONTEXT(cudaThreadExchangeStreamCaptureMode);
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  TARN_EMU_ENTRY(cudaGraphInstantiate);
  if (executable == nullptr || graph == nullptr) return fail(cudaErrorInvalidValue);
  *executable = new CUgraphExec_st{graph->operations};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  TARN_EMU_ENTRY(cudaGraphLaunch);
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (executable == nullptr) return fail(cudaErrorInvalidValue);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  for (const Operation& operation : executable->operations) {
    if (const cudaError_t error = enqueue(*stream, operation, lock)) return error;
  }
  return cudaSuccess;
}

/// Only the number of nodes: `nodes` must be null.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  TARN_EMU_ENTRY(cudaGraphGetNodes);
  if (graph == nullptr || count == nullptr) return fail(cudaErrorInvalidValue);
  if (nodes != nullptr) return fail(cudaErrorNotSupported);
  const auto& all = graph->operations;
  *count = static_cast<std::size_t>(
      std::count_if(all.begin(), all.end(), [](const Operation& one) { return !one.is_mark; }));
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  TARN_EMU_ENTRY(cudaGraphDestroy);
  if (graph == nullptr) return fail(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  TARN_EMU_ENTRY(cudaGraphExecDestroy);
  if (executable == nullptr) return fail(cudaErrorInvalidValue);
  Lock lock = lock_runtime();
  drain_device(current_device(), lock);
  delete executable;
  return cudaSuccess;
}

}  // extern "C"
