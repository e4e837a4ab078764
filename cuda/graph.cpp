// graph.cpp - stream capture.
#include "tarn/cuda/graph.h"

#include "tarn/core/allocator.h"
#include "tarn/core/backend.h"
#include "tarn/core/transfer.h"
#include "tarn/cuda/backend.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {

struct Graph::Recording {
  Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;

  void drop() noexcept {
    if (executable) cudaGraphExecDestroy(executable);
    if (graph) cudaGraphDestroy(graph);
    executable = nullptr;
    graph = nullptr;
    keep_cached(stream, false);
  }
};

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
  const cudaStream_t stream = raw_stream(r.stream);
  set_device(r.stream.device.index);
  keep_cached(r.stream, true);
  // Relaxed: other threads (a data loader that pins memory) go on meanwhile.
  TARN_CUDA_CALL(cudaStreamBeginCapture, stream, cudaStreamCaptureModeRelaxed);
  try {
    step();
  } catch (...) {
    cudaStreamEndCapture(stream, &r.graph);
    cudaGetLastError();
    r.drop();
    throw;
  }
  TARN_CUDA_CALL(cudaStreamEndCapture, stream, &r.graph);
  TARN_CUDA_CALL(cudaGraphInstantiate, &r.executable, r.graph, 0ull);
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
