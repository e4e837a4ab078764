// cuda_start_test.cpp - a build with CUDA starts on any machine, and says what it found.
#include "gpu_tools.h"
#include "tests_throws.h"

#include "tarn/core/factory.h"

namespace tarn {
namespace {

TEST(CudaStart, without_a_gpu_the_cpu_is_left_and_the_error_says_why) {
  if (has_backend(DeviceType::kCUDA)) GTEST_SKIP() << "there is a GPU on this machine";
  EXPECT_EQ(available_devices(), std::vector<Device>{kCPU});
  EXPECT_EQ(ones({3}).to_vector<float>(), std::vector<float>({1, 1, 1}));
  EXPECT_THROWS_WITH(ones({3}).to(kCuda), DeviceError, "use device cpu");
  EXPECT_THROWS_WITH(ones({3}).to(kCuda), DeviceError, "device: cuda: no ");
}

TEST(CudaStart, with_a_gpu_it_is_listed_and_described) {
  TARN_NEEDS_GPU();
  const std::vector<Device> devices = available_devices();
  ASSERT_GE(devices.size(), 2u);
  EXPECT_EQ(devices[1], kCuda);
  const DeviceInfo info = backend(DeviceType::kCUDA).info(0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GT(info.total_memory, size_t{1} << 20);
  EXPECT_GT(info.multiprocessors, 0);
}

}  // namespace
}  // namespace tarn
