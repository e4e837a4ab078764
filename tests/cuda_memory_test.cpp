// cuda_memory_test.cpp - copies, pinned memory, memory shared by streams, several devices.
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "gpu_tools.h"
#include "tests_throws.h"

#include "tarn/core/allocator.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/transfer.h"
#include "tarn/core/views.h"
#include "tarn/cuda/graph.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#include "tarn/cuda/rt.h"
#endif

namespace tarn {
namespace {

std::vector<float> counting(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i % 251);
  return values;
}

TEST(CudaMemory, a_tensor_survives_the_way_there_and_back_in_every_dtype) {
  TARN_NEEDS_GPU();
  const Tensor x = from_vector(counting(1031), {1031});
  for (int d = 0; d < kNumDTypes; ++d) {
    const Tensor typed = raw::to(x, static_cast<DType>(d));
    const Tensor there = typed.to(kCuda);
    EXPECT_EQ(there.device(), kCuda);
    EXPECT_EQ(there.dtype(), typed.dtype());
    EXPECT_EQ(there.to_vector<double>(), typed.to_vector<double>()) << typed.dtype();
  }
}

TEST(CudaMemory, layouts_and_empty_tensors_keep_their_meaning) {
  TARN_NEEDS_GPU();
  const Tensor x = from_vector(counting(120), {2, 3, 4, 5});
  const Tensor nhwc = x.contiguous(MemoryFormat::kChannelsLast);
  EXPECT_TRUE(nhwc.to(kCuda).is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_EQ(nhwc.to(kCuda).to_vector<float>(), x.to_vector<float>());
  const Tensor transposed = x.transpose(0, 3);
  EXPECT_EQ(transposed.to(kCuda).to_vector<float>(), transposed.to_vector<float>());
  const Tensor slice = x.slice(3, 1, 5, 2);
  EXPECT_EQ(slice.to(kCuda).to_vector<float>(), slice.to_vector<float>());
  const Tensor wide = x.slice(0, 0, 1).expand({3, 3, 4, 5});
  EXPECT_EQ(wide.to(kCuda).to_vector<float>(), wide.to_vector<float>());
  EXPECT_EQ(zeros({0, 3}).to(kCuda).sizes(), Shape({0, 3}));
  EXPECT_EQ(scalar_tensor(7).to(kCuda).item(), 7);
}

TEST(CudaMemory, pinned_memory_is_known_kept_and_used_again) {
  TARN_NEEDS_GPU();
  const Tensor x = from_vector(counting(5000), {5000});
  const void* first = nullptr;
  {
    const Tensor pinned = pin_memory(x);
    EXPECT_TRUE(is_pinned(pinned));
    EXPECT_FALSE(is_pinned(x));
    EXPECT_TRUE(pin_memory(pinned).is_same(pinned));
    EXPECT_EQ(pinned.to_vector<float>(), x.to_vector<float>());
    first = pinned.data();
  }
  EXPECT_EQ(pin_memory(x).data(), first);
  EXPECT_THROWS_WITH(pin_memory(x.to(kCuda)), DeviceError, "expected a tensor on the cpu");
}

#if defined(TARN_CUDA_EMU)
TEST(CudaMemory, pinning_stays_on_the_device_in_use) {
  if (backend(DeviceType::kCUDA).device_count() < 2) GTEST_SKIP() << "needs TARN_EMU_DEVICES=2";
  int device = -1;
  std::thread([&device] {
    ones({2}).to(Device(DeviceType::kCUDA, 1));
    empty_pinned({int64_t{5} << 20}, DType::kF64);  // more than any test has pinned
    cudaGetDevice(&device);
  }).join();
  EXPECT_EQ(device, 1);
}
#endif

TEST(CudaMemory, asynchronous_copies_arrive) {
  TARN_NEEDS_GPU();
  const Tensor x = from_vector(counting(5000), {5000});
  const Tensor there = to_async(pin_memory(x), kCuda);  // the pinned copy dies at once
  EXPECT_EQ(there.to_vector<float>(), x.to_vector<float>());
  const Tensor back = to_async(there, kCPU);
  synchronize(kCuda);
  EXPECT_EQ(back.to_vector<float>(), x.to_vector<float>());
}

TEST(CudaMemory, a_block_used_by_another_stream_is_not_handed_out_while_it_is) {
  TARN_NEEDS_GPU();
  Backend& cuda = backend(DeviceType::kCUDA);
  const Stream side = cuda.create_stream(0, 0);
  Tensor x = empty({3000}, {.device = kCuda});
  const void* first = x.data();
#if defined(TARN_CUDA_EMU)
  const bool lazy = std::exchange(emu::settings().lazy, true);  // what `side` queues stays queued
#endif
  const Tensor host = pin_memory(zeros({3000}));
  cuda.copy(x.data(), kCuda, host.data(), kCPU, 12000, side);
  record_stream(x, side);
  x = Tensor();
#if defined(TARN_CUDA_EMU)
  EXPECT_NE(empty({3000}, {.device = kCuda}).data(), first);
  emu::settings().lazy = lazy;
#endif
  cuda.synchronize(side);
  EXPECT_EQ(empty({3000}, {.device = kCuda}).data(), first);
  cuda.destroy_stream(side);
}

TEST(CudaMemory, a_full_device_lists_the_biggest_owners) {
  TARN_NEEDS_GPU();
  empty_cache(kCuda);
  const auto reserved = static_cast<size_t>(memory_stats(kCuda).reserved);
  set_memory_limit(reserved + (size_t{64} << 20), kCuda);
  const Tensor big = empty({int64_t{10} << 20}, {.device = kCuda});
  EXPECT_THROWS_WITH(empty({int64_t{10} << 20}, {.device = kCuda}), OutOfMemoryError, "cuda:0");
  set_memory_limit(0, kCuda);
  EXPECT_NE(memory_summary(kCuda).find("cuda:0"), std::string::npos);
}

#if defined(TARN_CUDA_EMU)
// What the device waits for may be a rank that is gone, and whoever is to notice needs memory too.
TEST(CudaMemory, other_threads_get_memory_while_one_empties_the_cache) {
  TARN_NEEDS_GPU();
  empty_cache(kCuda);
  std::atomic<bool> go_on{false}, second_done{false};
  const auto wait = [](void* flag) {
    while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
  };
  { const Tensor cached = empty({int64_t{12} << 20}, {.device = kCuda}); }
  const auto reserved = static_cast<size_t>(memory_stats(kCuda).reserved);
  const Stream side = backend(DeviceType::kCUDA).create_stream(0, 0);
  std::thread work([&] {
    cuda::set_device(0);
    TARN_CUDA_CALL(cudaLaunchHostFunc, cuda::raw_stream(side), wait, &go_on);
    backend(DeviceType::kCUDA).synchronize(side);
  });
  const auto waits = [] { return emu::call_count("cudaDeviceSynchronize"); };
  const uint64_t before = waits();
  while (emu::call_count("cudaLaunchHostFunc") == 0) std::this_thread::yield();
  std::thread first([] { empty_cache(kCuda); });
  while (waits() == before) std::this_thread::yield();
  EXPECT_TRUE(empty({int64_t{2} << 20}, {.device = kCuda}).defined());
  set_memory_limit(reserved + (size_t{10} << 20), kCuda);
  std::thread second([&] {  // fits only when the first has returned its memory
    const Tensor x = empty({int64_t{12} << 20}, {.device = kCuda});
    second_done = x.defined();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(second_done);
  go_on = true;
  for (std::thread* thread : {&work, &first, &second}) thread->join();
  EXPECT_TRUE(second_done);
  set_memory_limit(0, kCuda);
  backend(DeviceType::kCUDA).destroy_stream(side);
}
#endif

TEST(CudaMemory, an_emptied_cache_leaves_a_graph_its_memory) {
  TARN_NEEDS_GPU();
  const Tensor x = ones({int64_t{3} << 20}, {.device = kCuda}), y = zeros_like(x);
  cuda::Graph graph(kCuda);
  graph.capture([&] { raw::copy_(y, raw::add(raw::add(x, x), x)); });
  empty_cache(kCuda);
  const Tensor in_its_place = ones({int64_t{3} << 20}, {.device = kCuda});
  raw::fill_(y, 0);
  graph.replay();
  EXPECT_EQ(y.slice(0, 0, 3).to_vector<float>(), std::vector<float>({3, 3, 3}));
  EXPECT_EQ(in_its_place.slice(0, 0, 3).to_vector<float>(), std::vector<float>({1, 1, 1}));
}

TEST(CudaMemory, a_graph_that_has_gone_keeps_nothing) {
  TARN_NEEDS_GPU();
  const Tensor x = ones({int64_t{3} << 20}, {.device = kCuda}), y = zeros_like(x);
  empty_cache(kCuda);
  const int64_t before = memory_stats(kCuda).reserved;
  {
    cuda::Graph graph(kCuda);
    graph.capture([&] { raw::copy_(y, raw::add(raw::add(x, x), x)); });
    empty_cache(kCuda);
    EXPECT_GT(memory_stats(kCuda).reserved, before);
  }
  empty_cache(kCuda);
  EXPECT_EQ(memory_stats(kCuda).reserved, before);
}

TEST(CudaMemory, a_device_that_is_not_there_is_refused) {
  TARN_NEEDS_GPU();
  const int count = backend(DeviceType::kCUDA).device_count();
  const Device beyond(DeviceType::kCUDA, count);
  EXPECT_THROWS_WITH(ones({2}).to(beyond), DeviceError,
                     "device index must be below " + std::to_string(count));
}

TEST(CudaMemory, tensors_move_between_devices) {
  TARN_NEEDS_GPU();
  if (backend(DeviceType::kCUDA).device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const Device second(DeviceType::kCUDA, 1);
  const Tensor x = from_vector(counting(777), {7, 111});
  const Tensor y = x.to(kCuda).to(second);
  EXPECT_EQ(y.device(), second);
  EXPECT_EQ(y.to_vector<float>(), x.to_vector<float>());
  const Tensor z = x.to(kCuda);
  z.t().to(second);
  EXPECT_EQ(z.t().to(second).to_vector<float>(), x.t().to_vector<float>());
#if defined(TARN_CUDA_EMU)
  const uint64_t enabled = emu::call_count("cudaDeviceEnablePeerAccess");
  EXPECT_GE(enabled, 2u) << "else copies go through the host";
  EXPECT_EQ(z.to(second).to(kCuda).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(emu::call_count("cudaDeviceEnablePeerAccess"), enabled) << "once for each pair";
#endif
}

}  // namespace
}  // namespace tarn
