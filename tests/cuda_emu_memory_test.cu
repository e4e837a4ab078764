// cuda_emu_memory_test.cu - device memory, devices and error state of the emulator.
#include <cmath>

#include "tarn/cuda/rt.h"
#include "tarn/tests/cuda_emu_tools.h"

namespace {

using namespace tarn::emu_test;

__global__ void write_at(float* data, int64_t index) {
  data[index] = 1;
}
__global__ void follow(float** where) {
  **where = 1;
}

template <class... P, class... A>
void run(void (*kernel)(P...), A... arguments) {
  const auto config = shape(1, 1);
  EXPECT_CUDA(cudaLaunchKernelEx(&config, kernel, arguments...));
}

TEST(EmuMemory, fresh_memory_is_nan_and_belongs_to_its_device) {
  const SettingsGuard guard;
  const DeviceArray<float> data(4);
  EXPECT_TRUE(std::isnan(data.values()[3]));
  cudaPointerAttributes attributes;
  EXPECT_CUDA(cudaPointerGetAttributes(&attributes, data.get() + 1));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 0);
  int host = 0;
  EXPECT_CUDA(cudaPointerGetAttributes(&attributes, &host));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST(EmuMemory, memory_runs_out_and_comes_back) {
  const SettingsGuard guard;
  std::size_t free = 0, total = 0, after = 0;
  EXPECT_CUDA(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(total, tarn::emu::settings().memory_bytes);
  void* some = nullptr;
  EXPECT_CUDA(cudaMalloc(&some, 1000));
  EXPECT_CUDA(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(after, free - 1024);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, after + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_CUDA(cudaFree(some));
  EXPECT_CUDA(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(after, free);
  EXPECT_EQ(cudaFree(some), cudaErrorInvalidValue);  // twice
  cudaGetLastError();
}

TEST(EmuMemory, copies_must_stay_inside_and_go_the_way_they_say) {
  const SettingsGuard guard;
  const DeviceArray<float> data(4);
  float host[8] = {};
  EXPECT_EQ(cudaMemcpy(data.get(), host, 20, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(data.get(), host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(data.get() + 2, 0, 16), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaMemset(data.get() + 2, 0, 8));
  EXPECT_CUDA(cudaMemcpy(host, data.get(), 16, cudaMemcpyDefault));
  EXPECT_EQ(host[3], 0.0f);
  EXPECT_TRUE(std::isnan(host[1]));
  cudaGetLastError();
}

// ---- blocks of a caching allocator

TEST(EmuMemoryDeathTest, a_write_past_a_block_is_found_when_the_block_is_freed_or_on_demand) {
  const SettingsGuard guard;
  const DeviceArray<float> segment(1024);
  float* block = segment.get() + 128;
  tarn::emu::mark_allocated(block, 40, 512);
  run(write_at, block, 9);
  tarn::emu::check_memory();
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_DEATH(run(write_at, block, 10), "use-after-poison");
#else
  const auto write = [block] { run(write_at, block, 10); };
  EXPECT_DEATH((write(), tarn::emu::mark_freed(block)), "byte 40 of a block of 40 bytes at");
  EXPECT_DEATH((write(), tarn::emu::check_memory()), "byte 40 of a block of 40 bytes at");
  EXPECT_DEATH((write(), cudaDeviceSynchronize()), "byte 40 of a block of 40 bytes at");
  EXPECT_DEATH((tarn::emu::settings().check_each_kernel = true, write()), "byte 40 of a block");
#endif
  EXPECT_DEATH(cudaMemset(block, 0, 44), "cudaMemset: reaches 4 bytes past a block of 40 bytes");
  tarn::emu::mark_freed(block);
#if !defined(__SANITIZE_ADDRESS__)  // which does not let anybody read it
  float value = 0;
  EXPECT_CUDA(cudaMemcpy(&value, block + 9, 4, cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::isnan(value));
#endif
}

TEST(EmuMemoryDeathTest, a_write_to_a_freed_block_is_found_when_it_is_used_again) {
  const SettingsGuard guard;
  const DeviceArray<float> segment(1024);
  tarn::emu::mark_allocated(segment.get(), 512, 512);
  tarn::emu::mark_freed(segment.get());
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_DEATH(run(write_at, segment.get(), 3), "use-after-poison");
#else
  EXPECT_DEATH(
      (run(write_at, segment.get(), 3), tarn::emu::mark_allocated(segment.get(), 100, 512)),
      "byte 12 of a free block of 512 bytes at .* was written to after it was freed");
#endif
}

TEST(EmuMemory, blocks_change_hands_in_stream_order) {
  const SettingsGuard guard;
  tarn::emu::settings().lazy = true;
  const DeviceArray<float> segment(std::vector<float>(128, -NAN));
  EXPECT_CUDA(cudaMemset(segment.get(), 0xff, 512));
  tarn::emu::mark_allocated(segment.get(), 512);
  run(write_at, segment.get(), 127);
  tarn::emu::mark_freed(segment.get());  // the kernel has not run yet
  tarn::emu::mark_allocated(segment.get(), 4, 512);
  run(write_at, segment.get(), 0);
  EXPECT_CUDA(cudaDeviceSynchronize());
  tarn::emu::mark_freed(segment.get());
  EXPECT_CUDA(cudaDeviceSynchronize());
}

// ---- several devices

class EmuDevices : public testing::Test {
 protected:
  SettingsGuard guard_;

  void SetUp() override {
    if (tarn::emu::settings().devices < 2) GTEST_SKIP() << "needs TARN_EMU_DEVICES=2";
  }
  void TearDown() override { EXPECT_CUDA(cudaSetDevice(0)); }
};
using EmuDevicesDeathTest = EmuDevices;

TEST_F(EmuDevices, a_stream_of_another_device_is_refused) {
  const DeviceArray<float> data(4);
  cudaStream_t stream = nullptr;
  EXPECT_CUDA(cudaStreamCreate(&stream));
  EXPECT_CUDA(cudaSetDevice(1));
  const auto config = shape(1, 1, 0, stream);
  EXPECT_EQ(cudaLaunchKernelEx(&config, write_at, data.get(), 0), cudaErrorInvalidResourceHandle);
  cudaEvent_t event = nullptr;
  EXPECT_CUDA(cudaEventCreate(&event));
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaEventDestroy(event));
  EXPECT_CUDA(cudaStreamDestroy(stream));
  EXPECT_EQ(cudaSetDevice(tarn::emu::settings().devices), cudaErrorInvalidDevice);
  cudaGetLastError();
}

TEST_F(EmuDevices, copies_between_devices_work_and_memory_is_counted_apart) {
  const DeviceArray<float> here(std::vector<float>{1, 2});
  EXPECT_CUDA(cudaSetDevice(1));
  std::size_t before = 0, after = 0, total = 0;
  EXPECT_CUDA(cudaMemGetInfo(&before, &total));
  const DeviceArray<float> there(2);
  EXPECT_CUDA(cudaMemGetInfo(&after, &total));
  EXPECT_LT(after, before);
  EXPECT_CUDA(cudaMemcpyPeerAsync(there.get(), 1, here.get(), 0, 8, nullptr));
  EXPECT_EQ(there.values()[1], 2.0f);
  EXPECT_EQ(cudaMemcpyPeerAsync(there.get(), 0, here.get(), 1, 8, nullptr), cudaErrorInvalidValue);
  int can = 0;
  EXPECT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  cudaGetLastError();
}

TEST_F(EmuDevicesDeathTest, memory_of_another_device_needs_peer_access) {
  const DeviceArray<float> here(1);
  const DeviceArray<float*> hidden(std::vector<float*>{here.get()});
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_DEATH(run(write_at, here.get(), 0),
               "write_at: argument 0 is memory of device 0, the stream is of device 1");
  const DeviceArray<float*> pointer(std::vector<float*>{here.get()});
  EXPECT_DEATH(run(follow, pointer.get()),
               "follow, block .0,0,0., thread .0,0,0. touched memory of device 0 at");
  EXPECT_EXIT(
      {
        cudaDeviceEnablePeerAccess(0, 0);
        tarn::emu::settings().peer_kernels = true;
        run(write_at, here.get(), 0);
        run(follow, pointer.get());
        std::exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

// ---- errors

TEST(EmuErrors, calls_fail_on_request) {
  tarn::emu::fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void* pointer = nullptr;
  EXPECT_CUDA(cudaMalloc(&pointer, 4));
  EXPECT_CUDA(cudaFree(pointer));
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaErrorMemoryAllocation);
  EXPECT_CUDA(cudaMalloc(&pointer, 4));
  EXPECT_CUDA(cudaFree(pointer));
  tarn::emu::clear_failures();
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(EmuErrors, an_illegal_address_sticks_to_every_later_call) {
  tarn::emu::fail_call("cudaDeviceSynchronize", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 4), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  tarn::emu::clear_failures();
  tarn::emu::reset_errors();
  EXPECT_CUDA(cudaMalloc(&pointer, 4));
  EXPECT_CUDA(cudaFree(pointer));
}

TEST(EmuErrors, names_and_texts_are_cudas) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_STREQ(cudaGetErrorString(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

TEST(EmuErrors, the_device_describes_itself) {
  cudaDeviceProp properties;
  EXPECT_CUDA(cudaGetDeviceProperties(&properties, 0));
  EXPECT_STREQ(properties.name, "emulated GPU");
  EXPECT_EQ(properties.major, 9);
  int value = 0;
  EXPECT_CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  EXPECT_EQ(value, 227 << 10);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMaxPitch, 0), cudaErrorInvalidValue);
  cudaGetLastError();
}

}  // namespace
