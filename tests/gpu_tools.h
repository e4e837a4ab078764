// gpu_tools.h - what tests of the CUDA back end share.
#pragma once

#include <gtest/gtest.h>

#include "tarn/core/backend.h"

namespace tarn {

inline const Device kCuda{DeviceType::kCUDA, 0};

/// Ends a test that needs a GPU: skips it on a machine without one. Under emulation there always is
/// one, so a test that finds none has failed.
#if defined(TARN_CUDA_EMU)
#define TARN_NEEDS_GPU() ASSERT_TRUE(has_backend(DeviceType::kCUDA))
#else
#define TARN_NEEDS_GPU() \
  if (!has_backend(DeviceType::kCUDA)) GTEST_SKIP() << "no GPU on this machine"
#endif

}  // namespace tarn
