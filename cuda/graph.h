// graph.h - a training step recorded once and started again as a whole (CUDA graphs).
//
//   cuda::Graph graph(Device("cuda:0"));
//   graph.capture([&] { step(input, target); });   // runs step twice for real, then records it
//   for (...) { input.copy_(next); graph.replay(); }
//
// A replay costs one launch instead of hundreds. It runs the very same kernels on the very same
// memory: tensors that the step reads are filled in place before, what it leaves in tensors that
// live outside is read after. Numbers that the host computed are recorded as they were: a learning
// rate, Adam's step count, the state of the random generator. What makes the host wait (item(), a
// copy to the host, a collective) cannot be recorded, nor can copies from and to memory of the host
// that is not pinned.
#pragma once

#include <functional>
#include <memory>

#include "tarn/core/device.h"

namespace tarn::cuda {

class Graph {
 public:
  explicit Graph(Device device);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Runs `step` `warm_up` times on a stream of the graph's own, so that all memory and all plans
  /// are there, and records one further run, which is not executed. Memory that the step gets and
  /// frees stays the graph's. Throws DeviceError or UnsupportedError if the step does what cannot
  /// be recorded, and OutOfMemoryError if it needs more memory than the warm-up did and there is no
  /// more: what others have cached cannot be had while recording.
  void capture(const std::function<void()>& step, int warm_up = 2);
  /// Starts the recorded step on the graph's stream, between what is queued on the current stream
  /// before and after. Throws Error without a recording.
  void replay();
  /// Kernels and copies in the recording.
  int64_t nodes() const;

 private:
  struct Recording;
  std::unique_ptr<Recording> recording_;
};

}  // namespace tarn::cuda
