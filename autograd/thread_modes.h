// thread_modes.h - the modes of a thread, handed to threads that compute for it.
//
//   const ThreadModes modes = thread_modes();
//   std::thread worker([&] {
//     const ThreadModesGuard guard(modes);
//     y = replica(x);
//   });
//
// Recording, autocast, anomaly mode, saved-tensor hooks and recomputation belong to a thread each,
// and a new thread has none of them: what it computes for another must be computed as there.
#pragma once

#include <string>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/autograd/node.h"

namespace tarn {

/// What thread_modes() found. The handler of saved tensors is the other thread's: its guard must
/// live until the work is done.
struct ThreadModes {
  detail::GradModeState grad;
  AutocastState autocast;
  bool anomaly = false, anomaly_forward = false;
  std::string module_path;  ///< of anomaly mode
  SavedTensorHandler* saved_tensors = nullptr;
  int recomputing = 0;
};

/// The modes of this thread.
ThreadModes thread_modes();

/// Puts this thread into `modes` until the guard ends. A handler of saved tensors that serves only
/// its own thread (that of checkpoint) is left out elsewhere: tensors are kept there.
class ThreadModesGuard {
 public:
  explicit ThreadModesGuard(const ThreadModes& modes);
  ~ThreadModesGuard();
  ThreadModesGuard(const ThreadModesGuard&) = delete;
  ThreadModesGuard& operator=(const ThreadModesGuard&) = delete;

 private:
  ThreadModes previous_;
  AutocastGuard autocast_;
  SavedTensorHandlerGuard saved_tensors_;
};

}  // namespace tarn
