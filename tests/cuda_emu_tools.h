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

/// Restores the emulator's settings at the end of a test.
class SettingsGuard {
 public:
  SettingsGuard() : saved_(emu::settings()) {}
  ~SettingsGuard() { emu::settings() = saved_; }
  SettingsGuard(const SettingsGuard&) = delete;
  SettingsGuard& operator=(const SettingsGuard&) = delete;

 private:
  emu::Settings saved_;
};

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
