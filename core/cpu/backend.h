// backend.h - the CPU as a device: memory in huge pages, no queues.
#pragma once

#include "tarn/core/backend.h"

namespace tarn::cpu {

/// Never destroyed, so that tensors may die during static destruction.
Backend& cpu_backend();

}  // namespace tarn::cpu
