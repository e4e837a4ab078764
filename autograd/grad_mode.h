// grad_mode.h - whether operations of this thread are recorded.
#pragma once

namespace tarn {

namespace detail {
struct GradModeState {
  bool enabled = true;
  bool inference = false;
};
inline thread_local GradModeState grad_mode;
}  // namespace detail

inline bool grad_enabled() {
  return detail::grad_mode.enabled;
}
inline bool inference_mode_enabled() {
  return detail::grad_mode.inference;
}

/// Switches recording on or off for this thread until the guard ends.
class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled) : previous_(detail::grad_mode) {
    detail::grad_mode.enabled = enabled && !detail::grad_mode.inference;
  }
  ~GradModeGuard() { detail::grad_mode = previous_; }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 protected:
  detail::GradModeState previous_;
};

/// `NoGradGuard no_grad;` - nothing below is recorded.
class NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

/// As NoGradGuard, and nothing inside may switch recording on again: for evaluation and serving.
class InferenceModeGuard : public GradModeGuard {
 public:
  InferenceModeGuard() : GradModeGuard(false) { detail::grad_mode.inference = true; }
};

}  // namespace tarn
