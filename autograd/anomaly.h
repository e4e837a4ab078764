// anomaly.h - finding the operation that first produced a NaN or infinity in backward.
#pragma once

#include <string>

#include "tarn/autograd/node.h"

namespace tarn {

namespace detail {
inline thread_local bool anomaly_mode = false;
/// Where in the model this thread is, e.g. "layer1.0.conv1"; kept by nn::Module in anomaly mode.
std::string& current_module_path();

/// Appends a module's name to the path until the end of the scope. A root has none.
class ModulePathScope {
 public:
  explicit ModulePathScope(const std::string& name) : length_(current_module_path().size()) {
    std::string& path = current_module_path();
    if (!name.empty()) path += (path.empty() ? "" : ".") + name;
  }
  ~ModulePathScope() { current_module_path().resize(length_); }
  ModulePathScope(const ModulePathScope&) = delete;
  ModulePathScope& operator=(const ModulePathScope&) = delete;

 private:
  size_t length_;
};
}  // namespace detail

inline bool anomaly_enabled() {
  return detail::anomaly_mode;
}

/// While it lives, recorded operations remember where they were made, and a backward that yields
/// NaN or infinity from finite gradients throws AutogradError naming the forward operation, its
/// place and the first bad index. Slow: for finding a fault.
class AnomalyGuard {
 public:
  AnomalyGuard() : previous_(detail::anomaly_mode) { detail::anomaly_mode = true; }
  ~AnomalyGuard() { detail::anomaly_mode = previous_; }
  AnomalyGuard(const AnomalyGuard&) = delete;
  AnomalyGuard& operator=(const AnomalyGuard&) = delete;

 private:
  bool previous_;
};

/// Throws if one of the gradients that `node` returned has a NaN or infinity.
void check_anomaly(const Node& node, Grads& grads);

/// Row-major position of the first NaN or infinity, or -1. Reads the tensor on the host.
int64_t first_nonfinite(const Tensor& x);

}  // namespace tarn
