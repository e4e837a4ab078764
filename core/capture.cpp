// capture.cpp - the recordings under way.
#include "tarn/core/capture.h"

#include <algorithm>
#include <atomic>

#include "tarn/core/backend.h"

namespace tarn::detail {
namespace {

std::atomic<int> under_way{0};  // so that who does not record pays for one load

struct Captures {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> all;
};
Captures& captures() {
  static Captures& instance = *new Captures;
  return instance;
}

}  // namespace

void Capture::keep(std::shared_ptr<const void> thing) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(thing));
}

CaptureScope::CaptureScope(std::shared_ptr<Capture> capture) : capture_(std::move(capture)) {
  const std::lock_guard lock(captures().mutex);
  captures().all.push_back(capture_);
  ++under_way;
}

CaptureScope::~CaptureScope() {
  const std::lock_guard lock(captures().mutex);
  std::erase(captures().all, capture_);
  --under_way;
}

bool is_capturing(Device device) {
  if (under_way.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(captures().mutex);
  return std::any_of(captures().all.begin(), captures().all.end(),
                     [&](const auto& capture) { return capture->device() == device; });
}

bool is_capturing(Stream stream) {
  if (under_way.load(std::memory_order_relaxed) == 0) return false;
  return backend(stream.device.type).is_capturing(stream);
}

// Which of several recordings the stream takes part in is not known: each keeps it.
bool keep_for_graph(Stream stream, const std::shared_ptr<const void>& thing) {
  if (!is_capturing(stream)) return false;
  const std::lock_guard lock(captures().mutex);
  for (const auto& capture : captures().all) capture->keep(thing);
  return true;
}

}  // namespace tarn::detail
