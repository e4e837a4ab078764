// backend.h - NVIDIA GPUs as devices.
#pragma once

#include "tarn/core/backend.h"

namespace tarn::cuda {

/// Never destroyed, so that tensors may die during static destruction.
Backend& cuda_backend();
/// Why there is no device, as one sentence; "" if there is one.
const std::string& why_unavailable();

}  // namespace tarn::cuda
