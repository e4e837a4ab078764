// cuda_errors_test.cpp - what a user sees when something is wrong on or about a GPU.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "gpu_tools.h"
#include "tests_throws.h"

#include "tarn/autograd/functions.h"
#include "tarn/core/allocator.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/transfer.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#endif

namespace tarn {
namespace {

class CudaErrors : public testing::Test {
 protected:
  void SetUp() override { TARN_NEEDS_GPU(); }
};

TEST_F(CudaErrors, operands_on_two_devices_are_both_named) {
  const Tensor x = ones({2, 3}), g = x.to(kCuda), square = ones({3, 3}), row = ones({3});
  const Tensor index = zeros({2}, {.dtype = DType::kI64}),
               labels = zeros({2}, {.dtype = DType::kI64});
  const Tensor image = ones({1, 2, 4, 4}), filters = ones({2, 2, 3, 3});
  struct Case {
    const char* op;
    std::function<void()> call;
  };
  const Case cases[] = {
      {"add", [&] { add(x, g); }},
      {"add", [&] { add(g, x); }},
      {"mul", [&] { mul(g, row); }},
      {"add",
       [&] {
         Tensor y = g.clone();
         y.add_(x);
       }},
      {"atan2", [&] { atan2(g, x); }},
      {"logical_and", [&] { logical_and(g, x); }},
      {"lerp", [&] { lerp(g, x, 0.5); }},
      {"addcmul", [&] { addcmul(g, g, x); }},
      {"addcdiv", [&] { addcdiv(x, g, x); }},
      {"addmm", [&] { addmm(x, g, square.to(kCuda)); }},
      {"lt", [&] { lt(g, x); }},
      {"where", [&] { where(gt(x, 0), g, x); }},
      {"where", [&] { where(gt(x, 0), g, g); }},
      {"matmul", [&] { matmul(g, square); }},
      {"linear", [&] { linear(g, square); }},
      {"linear", [&] { linear(g, square.to(kCuda), row); }},
      {"conv2d", [&] { conv2d(image.to(kCuda), filters); }},
      {"conv2d", [&] { conv2d(image.to(kCuda), filters.to(kCuda), ones({2})); }},
      {"conv_transpose2d", [&] { conv_transpose2d(image.to(kCuda), filters); }},
      {"conv_transpose2d",
       [&] { conv_transpose2d(image.to(kCuda), filters.to(kCuda), ones({2})); }},
      {"batch_norm", [&] { batch_norm(g, row, row.to(kCuda)); }},
      {"group_norm", [&] { group_norm(image.to(kCuda), 2, ones({2})); }},
      {"layer_norm", [&] { layer_norm(g, {3}, row, row); }},
      {"cat",
       [&] {
         cat({g, x}, 0);
       }},
      {"stack",
       [&] {
         stack({g, x}, 0);
       }},
      {"index_select", [&] { index_select(g, 0, index); }},
      {"index_add", [&] { index_add(g, 0, index.to(kCuda), x); }},
      {"index_add", [&] { index_add(g, 0, index, g); }},
      {"index_copy", [&] { index_copy(g, 0, index, g); }},
      {"gather", [&] { gather(row.to(kCuda), 0, index); }},
      {"scatter", [&] { scatter(row.to(kCuda), 0, index, ones({2}).to(kCuda)); }},
      {"scatter_add", [&] { scatter_add(row.to(kCuda), 0, index.to(kCuda), ones({2})); }},
      {"embedding", [&] { embedding(g, index); }},
      {"index", [&] { tarn::index(g, {index}); }},
      {"masked_select", [&] { masked_select(g, gt(x, 0)); }},
      {"masked_fill", [&] { masked_fill(g, gt(x, 0), 0); }},
      {"cross_entropy", [&] { cross_entropy(g, labels); }},
      {"cross_entropy", [&] { cross_entropy(g, labels.to(kCuda), row); }},
      {"nll_loss", [&] { nll_loss(g, labels); }},
      {"index_put", [&] { index_put(g, {index}, g); }},
      {"index_put", [&] { index_put(g, {index.to(kCuda)}, x); }},
      {"take_along_dim",
       [&] {
         take_along_dim(g, labels.reshape({2, 1}), 1);
       }},
      {"index_fill", [&] { index_fill(g, 0, index, 1); }},
      {"mse_loss", [&] { mse_loss(g, x); }},
      {"l1_loss", [&] { l1_loss(g, x); }},
      {"smooth_l1_loss", [&] { smooth_l1_loss(g, x); }},
      {"huber_loss", [&] { huber_loss(g, x); }},
      {"kl_div", [&] { kl_div(g, x); }},
      {"binary_cross_entropy", [&] { binary_cross_entropy(g, x); }},
      {"binary_cross_entropy", [&] { binary_cross_entropy(g, g, x); }},
      {"binary_cross_entropy_with_logits", [&] { binary_cross_entropy_with_logits(g, x); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.op);
    try {
      c.call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find(std::string(c.op) + ": tensors must be on one device; got "), 0u) << text;
      EXPECT_NE(text.find(" cuda:0"), std::string::npos) << text;
      EXPECT_NE(text.find(" cpu"), std::string::npos) << text;
    }
  }
}

TEST_F(CudaErrors, a_device_that_is_not_there_is_refused_with_how_many_there_are) {
  const auto count = backend(DeviceType::kCUDA).device_count();
  const Device absent(DeviceType::kCUDA, count);
  const std::string text = "device index must be below " + std::to_string(count);
  EXPECT_THROWS_WITH(ones({2}).to(absent), DeviceError, text);
  EXPECT_THROWS_WITH(zeros({2}, {.device = absent}), DeviceError, text);
  EXPECT_THROWS_WITH(synchronize(absent), DeviceError, text);
  EXPECT_EQ(ones({2}).to(kCuda).to_vector<float>(), std::vector<float>({1, 1}));
}

TEST_F(CudaErrors, more_memory_than_there_is_names_the_device_and_leaves_it_usable) {
  const Tensor held = ones({1 << 20}).to(kCuda);
  EXPECT_THROWS_WITH(empty({int64_t{1} << 45}, {.device = kCuda}), OutOfMemoryError, "cuda:0");
  EXPECT_EQ(ones({2}).to(kCuda).to_vector<float>(), std::vector<float>({1, 1}));
}

#if defined(TARN_CUDA_EMU)  // faults that a healthy machine does not have

// For codes see cudaError_t.
constexpr int kOutOfMemory = 2, kInsufficientDriver = 35, kNoDevice = 100, kUnknown = 999;
constexpr int kIllegalAddress = 700, kLaunchOutOfResources = 701;

TEST_F(CudaErrors, an_allocation_that_fails_once_is_tried_again_with_the_cache_emptied) {
  { const Tensor cached = empty({int64_t{8} << 20}, {.device = kCuda}); }
  emu::fail_call("cudaMalloc", 1, kOutOfMemory);
  const Tensor x = empty({int64_t{24} << 20}, {.device = kCuda});
  emu::clear_failures();
  EXPECT_EQ(x.numel(), int64_t{24} << 20);
}

TEST_F(CudaErrors, a_launch_that_fails_names_the_kernel_and_the_next_works) {
  const Tensor x = ones({5}).to(kCuda);
  emu::fail_call("cudaLaunchKernelEx", 1, kLaunchOutOfResources);
  try {
    add(x, x);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("cuda: launch of tarn::cuda::elementwise_kernel<"), 0u) << text;
    EXPECT_NE(text.find(" failed on cuda:0: "), std::string::npos) << text;
    EXPECT_NE(text.find("(cudaErrorLaunchOutOfResources, 701)"), std::string::npos) << text;
  }
  EXPECT_EQ(add(x, x).to_vector<float>(), std::vector<float>(5, 2.0f));
}

TEST_F(CudaErrors, a_launch_without_memory_is_tried_again_with_the_cache_emptied) {
  const Tensor x = ones({5}).to(kCuda);
  { const Tensor cached = empty({int64_t{8} << 20}, {.device = kCuda}); }
  const int64_t before = memory_stats(kCuda).reserved;
  emu::fail_call("cudaLaunchKernelEx", 1, kOutOfMemory);
  EXPECT_EQ(add(x, x).to_vector<float>(), std::vector<float>(5, 2.0f));
  EXPECT_LT(memory_stats(kCuda).reserved, before);
  emu::fail_call("cudaLaunchKernelEx", 1, kOutOfMemory);
  emu::fail_call("cudaLaunchKernelEx", 2, kOutOfMemory);
  EXPECT_THROWS_WITH(add(x, x), OutOfMemoryError,
                     "cuda: launch of tarn::cuda::elementwise_kernel<");
  emu::clear_failures();
  EXPECT_EQ(add(x, x).to_vector<float>(), std::vector<float>(5, 2.0f));
}

TEST_F(CudaErrors, an_event_that_cannot_be_asked_does_not_free_memory_in_use) {
  Backend& cuda = backend(DeviceType::kCUDA);
  const Stream side = cuda.create_stream(0, 0);
  Tensor x = empty({3000}, {.device = kCuda});
  const void* first = x.data();
  const bool lazy = std::exchange(emu::settings().lazy, true);
  const Tensor host = pin_memory(zeros({3000}));
  cuda.copy(x.data(), kCuda, host.data(), kCPU, 12000, side);
  record_stream(x, side);
  x = Tensor();
  emu::fail_call("cudaEventQuery", 1, kUnknown);
  EXPECT_NE(empty({3000}, {.device = kCuda}).data(), first);
  emu::clear_failures();
  cuda.synchronize(side);
  emu::settings().lazy = lazy;
  EXPECT_EQ(empty({3000}, {.device = kCuda}).data(), first);
  cuda.destroy_stream(side);
}

TEST_F(CudaErrors, a_copy_that_fails_names_the_call) {
  const Tensor x = ones({5});
  emu::fail_call("cudaMemcpyAsync", 1, kUnknown);
  EXPECT_THROWS_WITH(x.to(kCuda), DeviceError, "cuda: cudaMemcpyAsync failed on cuda:0: ");
}

/// Prints the errors of f, called twice, and ends the process.
[[noreturn]] void print_errors_and_exit(const std::function<void()>& f) {
  for (int i = 0; i < 2; ++i) {
    try {
      f();
      std::fprintf(stderr, "no error\n");
    } catch (const std::exception& error) {
      std::fprintf(stderr, "<%s>\n", error.what());
    }
  }
  std::exit(0);
}

TEST_F(CudaErrors, after_an_error_that_ends_the_context_later_ones_repeat_it) {
  const auto twice = [] {
    const Tensor x = ones({5}).to(kCuda);
    emu::fail_call("cudaStreamSynchronize", 1, kIllegalAddress);
    print_errors_and_exit([&] {
      x.to(kCPU);
      emu::fail_call("cudaMemcpyAsync", 1, kUnknown);
      x.to(kCPU);
    });
  };
  EXPECT_EXIT(twice(), testing::ExitedWithCode(0),
              "<cuda: cudaStreamSynchronize failed on cuda:0: .*700\\)>\n"
              "(.|\n)*; the first error was: cuda: cudaStreamSynchronize failed on cuda:0: ");
}

class CudaFresh : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }  // a fresh process
};

TEST_F(CudaFresh, a_thread_that_looks_at_an_event_makes_no_context_on_the_first_gpu) {
  const auto look = [] {
    if (available_devices().size() < 3) std::exit(0);  // needs TARN_EMU_DEVICES=2
    Backend& cuda = backend(DeviceType::kCUDA);
    const Stream stream = cuda.default_stream(1);
    const auto event = std::make_unique<Event>(stream.device, true);
    event->record(stream);
    std::thread([&] {
      event->synchronize();
      const bool done = event->query();
      const Event later(stream.device);
      if (!done || emu::has_context(0)) std::exit(1);
    }).join();
    std::thread([&] { cuda.pinned_free(cuda.pinned_allocate(64)); }).join();
    std::exit(emu::has_context(0) || !emu::has_context(1) ? 1 : 0);
  };
  EXPECT_EXIT(look(), testing::ExitedWithCode(0), "");
}

TEST_F(CudaFresh, one_of_several_ranks_loads_kernels_before_collectives_run) {
  const auto start = [](const char* size, const char* mode) {
    setenv("WORLD_SIZE", size, 1);
    if (mode) setenv("CUDA_MODULE_LOADING", mode, 1);
    available_devices();
    const char* now = std::getenv("CUDA_MODULE_LOADING");
    std::fprintf(stderr, "<%s>", now ? now : "none");
    std::exit(0);
  };
  unsetenv("CUDA_MODULE_LOADING");
  EXPECT_EXIT(start("2", nullptr), testing::ExitedWithCode(0), "<EAGER>");
  EXPECT_EXIT(start("2", "LAZY"), testing::ExitedWithCode(0), "<LAZY>");
  EXPECT_EXIT(start("1", nullptr), testing::ExitedWithCode(0), "<none>");
}

class CudaAbsent : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }  // a fresh process
  void TearDown() override { unsetenv("TARN_EMU_FAIL"); }
  static void use_failure(int code) {
    setenv("TARN_EMU_FAIL", ("cudaGetDeviceCount:1=" + std::to_string(code)).c_str(), 1);
  }
  [[noreturn]] static void report() {
    std::fprintf(stderr, "%zu devices\n", available_devices().size());
    print_errors_and_exit([] { ones({2}).to(kCuda); });
  }
};

TEST_F(CudaAbsent, without_a_gpu_the_cpu_is_left) {
  use_failure(kNoDevice);
  EXPECT_EXIT(report(), testing::ExitedWithCode(0),
              "1 devices(.|\n)*cuda: no GPU is visible; use device cpu");
}

TEST_F(CudaAbsent, an_old_driver_is_named_with_what_this_build_needs) {
  use_failure(kInsufficientDriver);
  EXPECT_EXIT(report(), testing::ExitedWithCode(0),
              "1 devices(.|\n)*cuda: the driver supports CUDA [0-9.]+, this build needs [0-9.]+; "
              "update the driver");
}

TEST_F(CudaAbsent, any_other_failure_is_told_with_its_code) {
  use_failure(kUnknown);
  EXPECT_EXIT(report(), testing::ExitedWithCode(0),
              "1 devices(.|\n)*cuda: cudaGetDeviceCount failed: .*cudaErrorUnknown, 999");
}

#endif  // TARN_CUDA_EMU

}  // namespace
}  // namespace tarn
