// capture.h - recordings of work into CUDA graphs: which are under way, and what they keep.
//
// Work that is recorded runs later, and again and again: what it reads must live as long as the
// graph, and events tell nothing of it. Thread safety: all functions.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tarn/core/device.h"

namespace tarn::detail {

/// A recording of work of one device; lives as long as the graph that it becomes.
class Capture {
 public:
  explicit Capture(Device device) : device_(device) {}
  Device device() const { return device_; }
  void keep(std::shared_ptr<const void> thing);

 private:
  const Device device_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const void>> kept_;
};

/// While it lives, the recording is under way.
class CaptureScope {
 public:
  explicit CaptureScope(std::shared_ptr<Capture> capture);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

 private:
  std::shared_ptr<Capture> capture_;
};

/// True while work of the device is being recorded, by whatever thread. The device as a whole must
/// not be waited for then.
bool is_capturing(Device device);
/// True if what is queued on the stream now is recorded, not run.
bool is_capturing(Stream stream);
/// Has the graphs keep `thing` that work on the stream is being recorded into. False if it runs.
bool keep_for_graph(Stream stream, const std::shared_ptr<const void>& thing);

}  // namespace tarn::detail
