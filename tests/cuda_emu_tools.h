// cuda_emu_tools.h - a device buffer and checked calls for the tests of the CUDA emulator.
#pragma once

#include <cstddef>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "tarn/cuda/emu/hooks.h"

#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess) << #call

namespace tarn::emu_test {

/// Device memory holding `count` values; freed at the end.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_CUDA(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { EXPECT_CUDA(cudaFree(data_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> out(count_);
    EXPECT_CUDA(cudaMemcpy(out.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

/// Eager, forwards, whatever the environment says; restores the settings at the end of a test.
class SettingsGuard {
 public:
  SettingsGuard() : saved_(emu::settings()) {
    emu::settings().lazy = false;
    emu::settings().order = 0;
  }
  ~SettingsGuard() { emu::settings() = saved_; }
  SettingsGuard(const SettingsGuard&) = delete;
  SettingsGuard& operator=(const SettingsGuard&) = delete;

 private:
  emu::Settings saved_;
};

#if defined(__SANITIZE_THREAD__)
// A forked child lacks the threads that blocks run on, so death tests start a process afresh.
class FreshDeathTests : public testing::Environment {
 public:
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};
inline testing::Environment* const kFreshDeathTests =
    testing::AddGlobalTestEnvironment(new FreshDeathTests);
#endif

inline cudaLaunchConfig_t shape(dim3 grid, dim3 block, std::size_t shared = 0,
                                cudaStream_t stream = nullptr) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return config;
}

}  // namespace tarn::emu_test
