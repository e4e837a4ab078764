// math_mode.cpp - the switch of math_mode.h.
#include "tarn/core/math_mode.h"

#include <atomic>

namespace tarn {
namespace {

std::atomic<bool> tf32{false};

}  // namespace

void set_allow_tf32(bool allow) {
  tf32.store(allow, std::memory_order_relaxed);
}

bool allow_tf32() {
  return tf32.load(std::memory_order_relaxed);
}

}  // namespace tarn
