// cuda_dnn_test.cpp - convolutions through cuDNN: the library on a GPU, its stand-in without one.
#if TARN_HAVE_CUDNN

#include <cstdlib>

#include "cuda_conv_tools.h"

#include "tarn/core/allocator.h"
#include "tarn/core/math_mode.h"
#include "tarn/cuda/conv_shape.h"
#include "tarn/cuda/dnn_graph.h"
#include "tarn/cuda/dnn_settings.h"
#include "tarn/cuda/graph.h"
#include "tarn/tests/tests_throws.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#endif

namespace tarn::cuda {
namespace {

using namespace conv_test;

const ConvKernels& slots() {
  return kernels(DeviceType::kCUDA).conv;
}

/// Every test begins and ends without plans, with the settings of the environment.
class CudaDnn : public ::testing::Test {
 protected:
  void SetUp() override {
    TARN_NEEDS_GPU();
    if (dnn_api() == nullptr) GTEST_SKIP() << "cuDNN is not here";
    forget_dnn_plans();
  }
  void TearDown() override {
    if (!has_backend(DeviceType::kCUDA)) return;
    set_allow_tf32(false);
    dnn_settings() = read_dnn_settings();
    forget_dnn_plans();
  }
};

TEST_F(CudaDnn, every_pass_agrees_with_sums_in_f64) {
  for (const Case& c : kCases) {
    for (const auto& [dtype, tolerance] : kTolerances) {
      const Operands in = operands(c, dtype);
      expect_near(on_device(slots(), c, in), reference(c, in), tolerance, c, dtype);
    }
  }
}

TEST_F(CudaDnn, agrees_with_our_own_kernels) {
  for (const Case& c : kCases) {
    const Operands in = operands(c, DType::kF32);
    const Passes own = on_device(own_conv_kernels(), c, in);
    const Passes want{back(own.y), back(own.gx), back(own.gw), back(own.gb)};
    expect_near(on_device(slots(), c, in), want, 1e-5, c, DType::kF32);
  }
}

TEST_F(CudaDnn, tf32_is_used_only_when_it_is_allowed) {
  const Case& c = kCases[0];
  const Operands in = operands(c, DType::kF32);
  const Passes want = reference(c, in);
  EXPECT_LT(error(back(on_device(slots(), c, in).y), want.y), 1e-5);
  set_allow_tf32(true);
  const double with_tf32 = error(back(on_device(slots(), c, in).y), want.y);
  EXPECT_LT(with_tf32, 1e-2);
#if defined(TARN_CUDA_EMU)
  EXPECT_GT(with_tf32, 1e-5);
#endif
}

TEST_F(CudaDnn, autotuned_plans_agree_too) {
  dnn_settings().autotune = true;
  for (int run = 0; run < 2; ++run) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const Case& c = kCases[2];
      const Operands in = operands(c, dtype);
      expect_near(on_device(slots(), c, in), reference(c, in), kTolerances.at(dtype), c, dtype);
    }
  }
}

TEST_F(CudaDnn, views_that_begin_anywhere_are_taken) {
  const Case c{"slice", {3, 5, 3, 3}, {4, 5, 3, 3}, {.pad_h = 1, .pad_w = 1}};
  const Operands in = operands(c, DType::kF32);
  const Tensor whole = there(in.x);
  const Tensor x = raw::slice(whole, 0, 1, 3, 1);  // begins 180 bytes in
  Tensor y = last({2, 4, 3, 3}, DType::kF32, x.device());
  slots().forward(x, there(in.w), there(in.bias), c.o, y, current_stream(x.device()));
  const Tensor want = raw::slice(reference(c, in).y, 0, 1, 3, 1);
  EXPECT_LT(error(back(y), want), 1e-5);
}

TEST(CudaDnnSettings, environment_is_checked) {
  const auto read_with = [](const char* name, const char* value) {
    setenv(name, value, 1);
    std::string said;
    try {
      read_dnn_settings();
    } catch (const ValueError& e) {
      said = e.what();
    }
    unsetenv(name);
    return said;
  };
  EXPECT_EQ(read_with("TARN_CUDNN_WORKSPACE_MIB", "lots"),
            "TARN_CUDNN_WORKSPACE_MIB must be a number from 0 to 1048576; got 'lots'");
  EXPECT_EQ(read_with("TARN_CUDNN_AUTOTUNE", "2"),
            "TARN_CUDNN_AUTOTUNE must be a number from 0 to 1; got '2'");
  EXPECT_EQ(read_with("TARN_CUDNN_ATTENTION", "yes"),
            "TARN_CUDNN_ATTENTION must be a number from 0 to 1; got 'yes'");
  EXPECT_EQ(read_with("TARN_CUDNN_DETERMINISTIC", "-1"),
            "TARN_CUDNN_DETERMINISTIC must be a number from 0 to 1; got '-1'");
  EXPECT_EQ(read_with("TARN_CUDNN_WORKSPACE_MIB", "64"), "");
}

#if defined(TARN_CUDA_EMU)

uint64_t executed() {
  return emu::call_count("cudnnBackendExecute");
}

/// Runs one forward convolution; its error's text, or "".
std::string forward_error(const Case& c, DType dtype = DType::kF32) {
  const Operands in = operands(c, dtype);
  const Tensor x = there(in.x), w = there(in.w), bias = there(in.bias);
  const Tensor y = last(c.y(), dtype, x.device());
  try {
    slots().forward(x, w, bias, c.o, y, current_stream(x.device()));
  } catch (const DeviceError& e) {
    return e.what();
  }
  EXPECT_LT(error(back(y), reference(c, in).y), kTolerances.at(dtype));
  return "";
}

TEST_F(CudaDnn, halves_and_f32_go_to_cudnn_and_f64_does_not) {
  for (const auto& [dtype, tolerance] : kTolerances) {
    const uint64_t before = executed();
    on_device(slots(), kCases[0], operands(kCases[0], dtype));
    EXPECT_EQ(executed() - before, dtype == DType::kF64 ? 0u : 3u) << dtype;
  }
}

TEST_F(CudaDnn, plans_are_made_once_for_each_shape) {
  const auto created = [] { return emu::call_count("cudnnBackendCreateDescriptor"); };
  EXPECT_EQ(forward_error(kCases[0]), "");
  const uint64_t before = created();
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(created() - before, 1u);  // the pointers
  EXPECT_EQ(forward_error(kCases[1]), "");
  EXPECT_GT(created() - before, 10u);
}

TEST_F(CudaDnn, a_full_cache_keeps_the_plans_that_a_graph_has_taken) {
  const auto created = [] { return emu::call_count("cudnnBackendCreateDescriptor"); };
  const auto descriptors_of_a_run = [&](const Case& c) {
    const uint64_t before = created();
    EXPECT_EQ(forward_error(c), "");
    return created() - before;
  };
  const Operands in = operands(kCases[0], DType::kF32);
  const Tensor x = there(in.x), w = there(in.w), bias = there(in.bias);
  const Tensor y = last(kCases[0].y(), DType::kF32, x.device());
  Graph graph(x.device());
  graph.capture([&] { slots().forward(x, w, bias, kCases[0].o, y, current_stream(x.device())); });
  dnn_settings().cached_problems = 1;
  EXPECT_GT(descriptors_of_a_run(kCases[1]), 10u);
  EXPECT_GT(descriptors_of_a_run(kCases[2]), 10u);
  EXPECT_GT(descriptors_of_a_run(kCases[1]), 10u) << "it was forgotten";
  EXPECT_EQ(descriptors_of_a_run(kCases[0]), 1u) << "the graph's is still there: the pointers";
  graph.replay();
  EXPECT_LT(error(back(y), reference(kCases[0], in).y), kTolerances.at(DType::kF32));
}

TEST_F(CudaDnn, a_plan_that_a_graph_has_taken_is_not_tuned_away) {
  dnn_settings().autotune = true;
  const Operands in = operands(kCases[0], DType::kF32);
  const Tensor x = there(in.x), w = there(in.w), bias = there(in.bias);
  const Tensor y = last(kCases[0].y(), DType::kF32, x.device());
  Graph graph(x.device());
  graph.capture([&] { slots().forward(x, w, bias, kCases[0].o, y, current_stream(x.device())); },
                /*warm_up=*/0);
  const auto destroyed = [] { return emu::call_count("cudnnBackendDestroyDescriptor"); };
  const uint64_t runs = executed(), before = destroyed();
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(executed() - runs, 1u) << "nothing was timed";
  EXPECT_EQ(destroyed() - before, 1u) << "the pointers";
}

TEST_F(CudaDnn, our_own_kernel_runs_where_no_plan_fits) {
  dnn_settings().workspace = 0;  // the exact engine wants some
  const uint64_t before = executed();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "tarn: cuDNN has no plan for conv2d (forward, f32, x=[2, 19, 7, 9], weight=[37, 19, 3, "
            "3], stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1 on cuda:0); tarn's own "
            "kernel runs it\n");
  EXPECT_EQ(executed(), before);
}

TEST_F(CudaDnn, the_next_plan_runs_where_one_turns_out_not_to_work) {
  emu::fail_call("cudnnBackendExecute", 1, CUDNN_STATUS_NOT_SUPPORTED);
  const uint64_t before = executed();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(executed(), before + 2);
  EXPECT_EQ(forward_error(kCases[0], DType::kF32), "");
  EXPECT_EQ(executed(), before + 3) << "nothing is timed without TARN_CUDNN_AUTOTUNE=1";
  emu::clear_failures();
}

TEST_F(CudaDnn, our_own_kernel_runs_where_no_plan_turns_out_to_work) {
  for (int i = 1; i <= 20; ++i) {
    emu::fail_call("cudnnBackendExecute", i, CUDNN_STATUS_NOT_SUPPORTED);
  }
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "tarn: cuDNN has no plan for conv2d (forward, f32, x=[2, 19, 7, 9], weight=[37, 19, 3, "
            "3], stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1 on cuda:0); tarn's own "
            "kernel runs it\n");
  emu::clear_failures();
}

TEST_F(CudaDnn, an_engine_that_does_not_compile_is_passed_over) {
  const auto finalized = [] { return emu::call_count("cudnnBackendFinalize"); };
  const uint64_t before = finalized();
  EXPECT_EQ(forward_error(kCases[0], DType::kBF16), "");
  const auto of_the_plan = static_cast<int>(finalized() - before) - 1;  // the last is the pointers'
  forget_dnn_plans();
  const uint64_t runs = executed();
  emu::fail_call("cudnnBackendFinalize", of_the_plan,
                 CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED);
  EXPECT_EQ(forward_error(kCases[0], DType::kBF16), "");
  EXPECT_EQ(executed(), runs + 1);
  emu::clear_failures();
}

TEST_F(CudaDnn, our_own_kernel_runs_where_the_workspace_does_not_fit) {
  dnn_settings().workspace = int64_t{4} << 30;  // an engine proposed early wants 3 GiB
  set_memory_limit(size_t{1} << 30, kCuda);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(forward_error(kCases[0]), "");
  set_memory_limit(0, kCuda);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "tarn: cuDNN's workspace of 3221225472 bytes for conv2d (forward, f32, x=[2, 19, 7, "
            "9], weight=[37, 19, 3, 3], stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1 "
            "on cuda:0) does not fit into the device's memory; tarn's own kernel runs it\n");
}

TEST_F(CudaDnn, a_handle_that_takes_no_stream_is_kept_for_the_next_call) {
  const auto created = [] { return emu::call_count("cudnnCreate"); };
  EXPECT_EQ(forward_error(kCases[0]), "");
  const uint64_t before = created();
  emu::fail_call("cudnnSetStream", 1, CUDNN_STATUS_NOT_INITIALIZED);
  EXPECT_NE(forward_error(kCases[0]), "");
  emu::clear_failures();
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(created(), before);
}

TEST_F(CudaDnn, memory_that_it_lacks_is_taken_from_the_cache) {
  const auto code = CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  { const Tensor cached = empty({int64_t{8} << 20}, {.device = kCuda}); }
  const int64_t before = memory_stats(kCuda).reserved;
  emu::fail_call("cudnnBackendFinalize", 1, code);
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_LT(memory_stats(kCuda).reserved, before);
  forget_dnn_plans();
  emu::fail_call("cudnnBackendFinalize", 1, code);
  emu::fail_call("cudnnBackendFinalize", 2, code);
  EXPECT_THROWS_WITH((void)forward_error(kCases[0]), OutOfMemoryError,
                     "cuDNN's own needs do not fit beside the memory in use");
  emu::clear_failures();
  EXPECT_EQ(forward_error(kCases[0]), "");
}

TEST_F(CudaDnn, an_incomplete_installation_is_said_once_and_done_without) {
  emu::fail_call("cudnnBackendFinalize", 1, CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED);
  const uint64_t before = executed();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(forward_error(kCases[0]), "");
  EXPECT_EQ(forward_error(kCases[1]), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "tarn: cuDNN is not installed completely: cuda: cudnnBackendFinalize(convolution) "
            "failed: CUDNN_STATUS (see its number) (1008): injected by the emulator; convolutions "
            "and attention run on tarn's own kernels, many times slower (TARN_CUDNN=off silences "
            "this)\n");
  EXPECT_EQ(executed(), before);
  emu::clear_failures();
}

TEST_F(CudaDnn, errors_name_call_code_and_convolution) {
  const std::string where =
      "; in conv2d (forward, f32, x=[2, 19, 7, 9], weight=[37, 19, 3, 3], stride=[1, 1], "
      "padding=[1, 1], dilation=[1, 1], groups=1 on cuda:0); TARN_CUDNN=off does without cuDNN";
  emu::fail_call("cudnnBackendExecute", 1, CUDNN_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(forward_error(kCases[0]),
            "cuda: cudnnBackendExecute failed: CUDNN_STATUS_EXECUTION_FAILED (5000): injected by "
            "the emulator" +
                where);
  emu::fail_call("cudnnSetStream", 1, CUDNN_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(forward_error(kCases[0]),
            "cuda: cudnnSetStream failed: CUDNN_STATUS_NOT_INITIALIZED (1001): injected by the "
            "emulator" +
                where);
  emu::clear_failures();
  EXPECT_EQ(forward_error(kCases[0]), "");
}

/// Engines that the selection lets through, in order.
std::vector<int64_t> engines(const DnnConv& conv, int64_t workspace) {
  cudnnHandle_t handle = nullptr;
  dnn_check(dnn_api()->create(&handle), "cudnnCreate");
  const DnnTarget target{.handle = handle};
  const DnnGraph graph = make_graph(conv, target);
  std::vector<int64_t> found;
  for (const DnnPlan& plan : make_plans(graph, conv.numerics(), target, workspace, 10)) {
    found.push_back(plan.engine);
  }
  return found;
}

TEST_F(CudaDnn, engines_are_chosen_by_their_notes_and_workspace) {
  // The stand-in proposes 4 (for another GPU), 2 (sums in any order), 3 (3 GiB of workspace),
  // 1 (tensor cores), 0 (exact, 256 bytes).
  using List = std::vector<int64_t>;
  DnnConv conv{.shape = conv_shape({2, 4, 5, 5}, {3, 4, 3, 3}, {2, 3, 3, 3}, {})};
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(engines(conv, kGiB), (List{0}));
  EXPECT_EQ(engines(conv, 4 * kGiB), (List{3, 0}));
  EXPECT_EQ(engines(conv, 0), (List{}));
  conv.tf32 = true;
  EXPECT_EQ(engines(conv, kGiB), (List{1, 0}));
  conv.deterministic = false;
  EXPECT_EQ(engines(conv, kGiB), (List{2, 1, 0}));
  conv.tf32 = false, conv.deterministic = true, conv.dtype = DType::kBF16;
  EXPECT_EQ(engines(conv, kGiB), (List{1, 0}));
}

TEST_F(CudaDnn, stand_in_refuses_what_cudnn_refuses) {
  const auto status = [](auto call) {
    try {
      call();
    } catch (const DnnError& e) {
      return static_cast<int>(e.status());
    }
    return 0;
  };
  DnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
  EXPECT_EQ(status([&] { tensor.finalize(); }), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(status([&] { tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_DATA_FLOAT); }),
            CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  EXPECT_EQ(status([&] {
              tensor.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, {1, 1});
            }),
            CUDNN_STATUS_BAD_PARAM);
  DnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
  EXPECT_EQ(status([&] { graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, tensor); }),
            CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  DnnConv conv{.shape = conv_shape({2, 4, 5, 5}, {3, 4, 3, 3}, {2, 3, 3, 3}, {})};
  conv.shape.oh = 4;
  EXPECT_EQ(status([&] { engines(conv, 1024); }), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
}

#endif  // TARN_CUDA_EMU

}  // namespace
}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
