// graph.cpp - stream capture.
#include "tarn/cuda/graph.h"

#include "tarn/core/allocator.h"
#include "tarn/core/backend.h"
#include "tarn/core/capture.h"
#include "tarn/core/transfer.h"
#include "tarn/cuda/backend.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {

struct Graph::Recording {
  Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  std::shared_ptr<tarn::detail::Capture> capture;  // keeps what the graph reads

  void record(const std::function<void()>& step);

  void drop() noexcept {
    try {
      set_device(stream.device.index);
    } catch (const Error&) {  // the GPU is lost; so say the calls below
    }
    // A replay may be under way, and what it reads is let go below.
    if (executable && cudaStreamSynchronize(raw_stream(stream)) != cudaSuccess) cudaGetLastError();
    if (executable) cudaGraphExecDestroy(executable);
    if (graph) cudaGraphDestroy(graph);
    executable = nullptr;
    graph = nullptr;
    capture = nullptr;
    keep_cached(stream, false);
  }
};

void Graph::Recording::record(const std::function<void()>& step) {
  const cudaStream_t queue = raw_stream(stream);
  capture = std::make_shared<tarn::detail::Capture>(stream.device);
  keep_cached(stream, true);
  {
    const tarn::detail::CaptureScope scope(capture);
    // Relaxed: other threads (a data loader that pins memory) go on meanwhile.
    TARN_CUDA_CALL(cudaStreamBeginCapture, queue, cudaStreamCaptureModeRelaxed);
    try {
      step();
    } catch (...) {
      cudaStreamEndCapture(queue, &graph);
      cudaGetLastError();
      throw;
    }
    TARN_CUDA_CALL(cudaStreamEndCapture, queue, &graph);
  }
  TARN_CUDA_CALL(cudaGraphInstantiate, &executable, graph, 0ull);
}

// The stream is the key to the memory: the caching allocator hands a block out on the stream it was
// made for only, so what the recorded step used is never given to anybody else; keep_cached() has
// it stay even when the cache is emptied.
Graph::Graph(Device device) : recording_(std::make_unique<Recording>()) {
  TARN_CHECK_AS(DeviceError, device.is_cuda(), "cuda::Graph: expected a cuda device; got ", device);
  recording_->stream = backend(device.type).create_stream(device.index, 0);
}

Graph::~Graph() {
  recording_->drop();
  // The stream stays: cached memory belongs to it.
}

void Graph::capture(const std::function<void()>& step, int warm_up) {
  Recording& r = *recording_;
  r.drop();
  const Stream outer = current_stream(r.stream.device);
  tarn::detail::wait_for(outer, r.stream);
  const StreamGuard on_ours(r.stream);
  for (int i = 0; i < warm_up; ++i) step();
  set_device(r.stream.device.index);
  try {
    r.record(step);
  } catch (...) {
    r.drop();
    throw;
  }
  tarn::detail::wait_for(r.stream, outer);
}

void Graph::replay() {
  const Recording& r = *recording_;
  TARN_CHECK(r.executable, "cuda::Graph: nothing has been captured; call capture() first");
  const Stream outer = current_stream(r.stream.device);
  tarn::detail::wait_for(outer, r.stream);
  set_device(r.stream.device.index);
  TARN_CUDA_CALL(cudaGraphLaunch, r.executable, raw_stream(r.stream));
  tarn::detail::wait_for(r.stream, outer);
}

int64_t Graph::nodes() const {
  size_t count = 0;
  if (recording_->graph) TARN_CUDA_CALL(cudaGraphGetNodes, recording_->graph, nullptr, &count);
  return static_cast<int64_t>(count);
}

}  // namespace tarn::cuda
