// anomaly.h - finding the operation that first produced a NaN or infinity in backward.
#pragma once

#include <string>
#include <utility>

#include "tarn/autograd/node.h"

namespace tarn {

namespace detail {
inline thread_local bool anomaly_mode = false;
inline thread_local bool anomaly_forward = false;
/// Where in the model this thread is, e.g. "layer1.0.conv1"; kept by nn::Module in anomaly mode.
std::string& current_module_path();

/// The thread is in the module of this path until the end of the scope; an empty one (a model of
/// its own that a module calls) leaves the path as it is.
class ModulePathScope {
 public:
  explicit ModulePathScope(std::string path) : other_(std::move(path)), changed_(!other_.empty()) {
    if (changed_) std::swap(current_module_path(), other_);
  }
  ~ModulePathScope() {
    if (changed_) std::swap(current_module_path(), other_);
  }
  ModulePathScope(const ModulePathScope&) = delete;
  ModulePathScope& operator=(const ModulePathScope&) = delete;

 private:
  std::string other_;
  bool changed_;
};
}  // namespace detail

inline bool anomaly_enabled() {
  return detail::anomaly_mode;
}

struct AnomalyOptions {
  bool forward = false;  ///< also throw where a recorded operation gives NaN
  bool enabled = true;   ///< false: the guard changes nothing
};

/// While it lives, recorded operations remember where they were made, and a backward that yields
/// NaN or infinity from finite gradients throws AutogradError naming the forward operation, its
/// module and the first bad index. Slow: for finding a fault. Guards nest.
class AnomalyGuard {
 public:
  explicit AnomalyGuard(AnomalyOptions options = {})
      : mode_(detail::anomaly_mode), forward_(detail::anomaly_forward) {
    detail::anomaly_mode |= options.enabled;
    detail::anomaly_forward |= options.enabled && options.forward;
  }
  ~AnomalyGuard() {
    detail::anomaly_mode = mode_;
    detail::anomaly_forward = forward_;
  }
  AnomalyGuard(const AnomalyGuard&) = delete;
  AnomalyGuard& operator=(const AnomalyGuard&) = delete;

 private:
  bool mode_, forward_;
};

/// Throws if `output` of the operation that `node` records has a NaN. Infinities are let pass:
/// masks are full of them.
void check_anomaly_forward(const Node& node, const Tensor& output);
/// Throws if one of the gradients that `node` returned has a NaN or infinity.
void check_anomaly(const Node& node, Grads& grads);

/// Row-major position of the first NaN or infinity, or -1. Reads the tensor on the host.
int64_t first_nonfinite(const Tensor& x);

}  // namespace tarn
