// thread_modes.cpp - taking and installing the modes of a thread.
#include "tarn/autograd/thread_modes.h"

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/recompute.h"

namespace tarn {
namespace {

SavedTensorHandler* handler_here(SavedTensorHandler* handler) {
  if (!handler || handler == detail::saved_tensor_handler) return handler;
  return handler->serves_other_threads() ? handler : nullptr;
}

/// All but autocast and saved tensors, which have guards of their own.
void install(const ThreadModes& modes) {
  detail::grad_mode = modes.grad;
  detail::anomaly_mode = modes.anomaly;
  detail::anomaly_forward = modes.anomaly_forward;
  detail::current_module_path() = modes.module_path;
  detail::recomputing = modes.recomputing;
}

}  // namespace

ThreadModes thread_modes() {
  return {.grad = detail::grad_mode,
          .autocast = autocast_state(),
          .anomaly = detail::anomaly_mode,
          .anomaly_forward = detail::anomaly_forward,
          .module_path = detail::current_module_path(),
          .saved_tensors = detail::saved_tensor_handler,
          .recomputing = detail::recomputing};
}

ThreadModesGuard::ThreadModesGuard(const ThreadModes& modes)
    : previous_(thread_modes()),
      autocast_(modes.autocast),
      saved_tensors_(handler_here(modes.saved_tensors)) {
  install(modes);
}

ThreadModesGuard::~ThreadModesGuard() {
  install(previous_);
}

}  // namespace tarn
