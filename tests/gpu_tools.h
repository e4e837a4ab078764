// gpu_tools.h - what tests of the CUDA back end share.
#pragma once

#include <gtest/gtest.h>

#include "tarn/core/backend.h"

namespace tarn {

inline const Device kCuda{DeviceType::kCUDA, 0};

/// Ends a test on a machine without a GPU. Under emulation there always is one.
#define TARN_NEEDS_GPU() \
  if (!has_backend(DeviceType::kCUDA)) GTEST_SKIP() << "no GPU on this machine"

}  // namespace tarn
