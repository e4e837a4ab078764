// cuda_dnn_attention_test.cpp - attention through cuDNN: the library on a GPU, its stand-in without
// one.
#if TARN_HAVE_CUDNN

#include "cuda_dnn_attention_tools.h"

#include "tarn/core/kernels.h"
#include "tarn/core/raw_attention.h"
#include "tarn/cuda/attention.h"
#include "tarn/cuda/dnn_attention.h"
#include "tarn/cuda/dnn_attention_graph.h"
#if defined(TARN_CUDA_EMU)
#include "tarn/cuda/emu/hooks.h"
#endif

namespace tarn::cuda {
namespace {

using namespace dnn_attention_test;

#if defined(TARN_CUDA_EMU)
uint64_t executed() {
  return emu::call_count("cudnnBackendExecute");
}
#endif

TEST_F(CudaDnnAttention, agrees_with_f64_and_with_our_own_kernels) {
  for (const Case& c : kCases) {
    for (const auto& [dtype, tolerance] : kTolerances) {
      dnn_settings().attention = true;
      const List got = on_device(c, dtype);
      expect_near(got, reference(c, dtype), tolerance, c.name);
      dnn_settings().attention = false;
      expect_near(got, on_device(c, dtype), tolerance, c.name);
    }
  }
}

TEST_F(CudaDnnAttention, sums_in_any_order_agree_too) {
  dnn_settings().deterministic = false;
  for (const Case& c : {kCases[1], kCases[6]}) {
    for (const auto& [dtype, tolerance] : kTolerances) {
      const List want = reference(c, dtype);
      for (int repeat = 0; repeat < 2; ++repeat) {  // the second time in the first one's scratch
        expect_near(on_device(c, dtype), want, tolerance, c.name);
      }
    }
  }
}

TEST_F(CudaDnnAttention, autotuned_plans_agree_too) {
  dnn_settings().autotune = true;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const Case& c = kCases[2];
    expect_near(on_device(c, DType::kF16), reference(c, DType::kF16), 4e-3, c.name);
  }
}

TEST_F(CudaDnnAttention, two_runs_give_the_same_bits) {
  for (const Case& c : {kCases[3], kCases[6]}) {
    const List a = on_device(c, DType::kBF16), b = on_device(c, DType::kBF16);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(equal(a[i], b[i])) << c.name << ", " << i;
  }
}

/// q, k, v of a case on the device and what the kernel slots write to.
struct Operands {
  AttentionCall call;
  Tensor out, logsumexp, gout, gq, gk, gv;

  Operands(const Case& c, DType dtype) {
    Generator numbers(1);
    const auto make = [&](const Shape& s) { return randn(s, {}, &numbers).to(dtype).to(kCuda); };
    const Tensor q = make(c.q), k = make(c.k), v = make(c.v);
    call = raw::attention_call(q, k, v, {}, 0.3, c.causal, 0, {});
    const Shape sizes{c.q[0], c.q[1], c.q[2], c.v[3]};
    out = empty(sizes, {.dtype = dtype, .device = kCuda});
    logsumexp = empty({c.q[0], c.q[1], c.q[2]}, {.device = kCuda});
    gout = make(sizes), gq = empty_like(q), gk = empty_like(k), gv = empty_like(v);
  }
  void forward(const AttentionKernels& slots) const {
    slots.scaled_dot_product_attention(call, out, logsumexp, current_stream(kCuda));
  }
  void backward(const AttentionKernels& slots) const {
    slots.scaled_dot_product_attention_backward(call, out, logsumexp, gout, gq, gk, gv,
                                                current_stream(kCuda));
  }
  bool fits() const {
    const Tensor tensors[] = {call.q, call.k, call.v, out};
    return dnn_attention_fits(call, tensors);
  }
};

const AttentionKernels& slots() {
  return kernels(DeviceType::kCUDA).attention;
}

TEST_F(CudaDnnAttention, log_sum_exps_are_those_of_our_own_kernels) {
  for (const Case& c : kCases) {
    const Operands x(c, DType::kBF16), own(c, DType::kBF16);
    x.forward(slots());
    own.forward(own_attention_kernels());
    EXPECT_LE(amax(abs(sub(wide(x.logsumexp), wide(own.logsumexp)))).item(), 1e-3) << c.name;
  }
}

TEST_F(CudaDnnAttention, what_does_not_fit_is_not_asked_for) {
  const auto fits = [](const Case& c, DType dtype) { return Operands(c, dtype).fits(); };
  EXPECT_TRUE(fits(kCases[0], DType::kF16));
  EXPECT_TRUE(fits(kCases[0], DType::kBF16));
  EXPECT_FALSE(fits(kCases[0], DType::kF32));
  const Shape narrow{1, 1, 64, 12}, wide{1, 1, 64, 136}, few{1, 1, 63, 8}, good{1, 1, 64, 8};
  EXPECT_FALSE(fits({"D", narrow, narrow, good}, DType::kF16));
  EXPECT_FALSE(fits({"E", good, good, narrow}, DType::kF16));
  EXPECT_FALSE(fits({"D", wide, wide, good}, DType::kF16));
  EXPECT_FALSE(fits({"T", few, good, good}, DType::kF16));
  EXPECT_FALSE(fits({"S", good, {1, 1, 0, 8}, {1, 1, 0, 8}}, DType::kF16));
  Operands x(kCases[0], DType::kF16);
  x.call.dropout = 0.1;
  EXPECT_FALSE(x.fits());
  x.call.dropout = 0;
  x.call.mask = ones({2, 2, 64, 128}, {.device = kCuda});
  EXPECT_FALSE(x.fits());
  x.call.mask = {};
  EXPECT_TRUE(x.fits());
  dnn_settings().attention = false;
  EXPECT_FALSE(x.fits());
}

TEST_F(CudaDnnAttention, addresses_and_steps_must_be_multiples_of_16_bytes) {
  const auto fits = [](const Tensor& q) {
    const Tensor tensors[] = {q};
    return dnn_attention_fits(raw::attention_call(q, q, q, {}, 1, false, 0, {}), tensors);
  };
  const Tensor x = zeros({2, 65, 2, 16}, {.dtype = DType::kF16, .device = kCuda});
  EXPECT_TRUE(fits(transpose(x, 1, 2)));
  EXPECT_TRUE(fits(transpose(narrow(x, 3, 8, 8), 1, 2)));   // begins 16 bytes in
  EXPECT_FALSE(fits(transpose(narrow(x, 3, 4, 8), 1, 2)));  // 8 bytes in
  const Tensor odd = zeros({2, 65, 2, 12}, {.dtype = DType::kF16, .device = kCuda});
  EXPECT_FALSE(fits(transpose(narrow(odd, 3, 0, 8), 1, 2)));  // heads 24 bytes apart
  EXPECT_FALSE(fits(expand(narrow(transpose(x, 1, 2), 1, 0, 1), {2, 2, 65, 16})));  // 0 bytes
  EXPECT_TRUE(fits(narrow(narrow(transpose(x, 1, 2), 1, 0, 1), 0, 0, 1)));  // one head of one batch
}

TEST_F(CudaDnnAttention, parts_of_one_packed_tensor_are_taken) {
  Generator numbers(1);
  const Tensor whole = randn({2, 70, 3 * 2 * 16}, {}, &numbers).to(DType::kBF16);
  const Tensor g = randn({2, 70, 2 * 16}, {}, &numbers).to(DType::kBF16);
  const auto run_packed = [&](Device device, DType dtype) {
    Tensor qkv = whole.to(dtype).to(device);
    qkv.set_requires_grad();
    const Tensor y = scaled_dot_product_attention_qkv(qkv, 2, {.causal = true});
    const Tensor gqkv = grad(List{y}, List{qkv}, List{g.to(dtype).to(device)})[0];
    return List{wide(y), wide(gqkv)};
  };
#if defined(TARN_CUDA_EMU)
  const uint64_t before = executed();
#endif
  expect_near(run_packed(kCuda, DType::kBF16), run_packed(kCPU, DType::kF64), 2e-2, "packed");
#if defined(TARN_CUDA_EMU)
  EXPECT_EQ(executed() - before, 2u);
#endif
}

TEST_F(CudaDnnAttention, backward_cuts_batches_where_log_sum_exps_are_aligned) {
  // With 65 queries, those of 4 batches are multiples of 16 bytes; with 2 heads, of 2.
  struct Row {
    int64_t heads, fit;  // batches that the workspace is enough for
    uint64_t parts;
  };
  constexpr int64_t kScores = 128 * 128 * 2;  // bytes of a head: T and S in tiles, halves
  for (const auto& [heads, fit, parts] : {Row{1, 4, 2}, Row{2, 3, 3}, Row{2, 4, 2}, Row{4, 3, 2}}) {
    const Shape q{5, heads, 65, 8}, k{5, heads, 70, 8};
    const Case c{"65 queries", q, k, k, true};
    dnn_settings().attention = false;
    const List own = on_device(c, DType::kF16);
    dnn_settings().attention = true;
    dnn_settings().workspace = fit * heads * kScores + 4096;
    forget_dnn_plans();
#if defined(TARN_CUDA_EMU)
    const uint64_t before = executed();
#endif
    expect_near(on_device(c, DType::kF16), own, 4e-3, c.name);
#if defined(TARN_CUDA_EMU)
    EXPECT_EQ(executed() - before, 1 + parts) << heads << " heads, " << fit << " batches";
#endif
  }
}

#if defined(TARN_CUDA_EMU)

TEST_F(CudaDnnAttention, halves_go_to_cudnn_and_the_rest_does_not) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const uint64_t before = executed();
    on_device(kCases[0], dtype);
    const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
    EXPECT_EQ(executed() - before, half ? 2u : 0u) << dtype;
  }
}

TEST_F(CudaDnnAttention, plans_are_made_once_for_each_shape) {
  const auto created = [](const Case& c, double scale) {
    const uint64_t before = emu::call_count("cudnnBackendCreateDescriptor");
    Operands x(c, DType::kF16);
    x.call.scale = scale;
    x.forward(slots());
    return emu::call_count("cudnnBackendCreateDescriptor") - before;
  };
  EXPECT_GT(created(kCases[0], 0.3), 20u);
  EXPECT_EQ(created(kCases[0], 0.3), 1u);  // the pointers
  EXPECT_EQ(created(kCases[0], 0.7), 1u);  // a number that the plan is run with
  Case causal = kCases[0];
  causal.causal = true;
  EXPECT_GT(created(causal, 0.3), 20u);
}

TEST_F(CudaDnnAttention, backward_cuts_batches_to_the_workspace) {
  const Case c{"batches", {5, 2, 66, 8}, {5, 2, 70, 8}, {5, 2, 70, 8}, true};
  const List want = reference(c, DType::kF16);
  const auto executions = [&](int64_t workspace) {
    dnn_settings().workspace = workspace;
    forget_dnn_plans();
    const uint64_t before = executed();
    expect_near(on_device(c, DType::kF16), want, 4e-3, c.name);
    return executed() - before;
  };
  constexpr int64_t kBatch = 2 * 128 * 128 * 2;  // bytes of scores: heads, T and S in tiles, halves
  EXPECT_EQ(executions(5 * kBatch + 4096), 2u);
  EXPECT_EQ(executions(4 * kBatch + 4096), 1u + 2);  // 3 and 2 batches
  EXPECT_EQ(executions(2 * kBatch + 4096), 1u + 3);  // 2, 2 and 1
  EXPECT_EQ(executions(kBatch + 4096), 1u + 5);
  EXPECT_EQ(executions(0), 2u);  // at once: it is cuDNN's turn to say that no plan fits
  dnn_settings().deterministic = false;
  EXPECT_EQ(executions(kBatch + 4096), 2u);
}

TEST_F(CudaDnnAttention, our_own_kernel_runs_where_there_is_no_plan) {
  const Case& c = kCases[6];
  const uint64_t before = executed();
  ::testing::internal::CaptureStderr();
  emu::fail_call("cudnnBackendFinalize", 1, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
  Operands x(c, DType::kF16);
  x.forward(slots());
  x.forward(slots());
  emu::fail_call("cudnnBackendFinalize", 1, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
  x.backward(slots());
  emu::clear_failures();
  const std::string shapes =
      ", f16, q=[2, 6, 66, 8], k=[2, 2, 70, 8], v=[2, 2, 70, 16], causal on cuda:0); tarn's own "
      "kernel runs it\n";
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "tarn: cuDNN has no plan for scaled_dot_product_attention (forward" + shapes +
                "tarn: cuDNN has no plan for scaled_dot_product_attention (backward" + shapes);
  EXPECT_EQ(executed(), before);
  Operands own(c, DType::kF16);
  own.forward(own_attention_kernels());
  own.backward(own_attention_kernels());
  EXPECT_TRUE(equal(wide(x.out), wide(own.out)));
  EXPECT_TRUE(equal(wide(x.gk), wide(own.gk)));
}

TEST_F(CudaDnnAttention, our_own_kernel_runs_where_a_plan_turns_out_not_to_work) {
  const Case& c = kCases[2];
  const List want = reference(c, DType::kF16);
  for (int which : {1, 2}) {  // forward, backward
    forget_dnn_plans();
    emu::fail_call("cudnnBackendExecute", which, CUDNN_STATUS_NOT_SUPPORTED);
    expect_near(on_device(c, DType::kF16), want, 4e-3, c.name);
    expect_near(on_device(c, DType::kF16), want, 4e-3, c.name);
    emu::clear_failures();
  }
}

TEST_F(CudaDnnAttention, errors_name_call_code_and_shapes) {
  const auto error_of = [](auto call) -> std::string {
    try {
      call();
    } catch (const DeviceError& e) {
      return e.what();
    }
    return "";
  };
  const Operands x(kCases[0], DType::kBF16);
  const std::string shapes =
      ", bf16, q=[2, 2, 64, 16], k=[2, 2, 128, 16], v=[2, 2, 128, 16] on cuda:0); TARN_CUDNN=off "
      "does without cuDNN";
  emu::fail_call("cudnnBackendExecute", 1, CUDNN_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(error_of([&] { x.forward(slots()); }),
            "cuda: cudnnBackendExecute failed: CUDNN_STATUS_EXECUTION_FAILED (5000): injected by "
            "the emulator; in scaled_dot_product_attention (forward" +
                shapes);
  emu::fail_call("cudnnBackendExecute", 1, CUDNN_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(error_of([&] { x.backward(slots()); }),
            "cuda: cudnnBackendExecute failed: CUDNN_STATUS_EXECUTION_FAILED (5000): injected by "
            "the emulator; in scaled_dot_product_attention (backward" +
                shapes);
  emu::clear_failures();
  EXPECT_EQ(error_of([&] { x.forward(slots()); }), "");
}

TEST_F(CudaDnnAttention, stand_in_refuses_what_cudnn_refuses) {
  const auto status = [](const DnnAttention& a) {
    cudnnHandle_t handle = nullptr;
    dnn_check(dnn_api()->create(&handle), "cudnnCreate");
    try {
      make_graph(a, {.handle = handle});
    } catch (const DnnError& e) {
      return static_cast<int>(e.status());
    }
    return 0;
  };
  const DnnHeads step{64 * 16, 64 * 16, 16};
  DnnAttention good{.batch = 2, .queries = 64, .keys = 64, .depth = 16, .width = 16};
  good.q = good.k = good.v = good.out = good.gout = good.gq = good.gk = good.gv = step;
  EXPECT_EQ(status(good), 0);
  DnnAttention bad = good;
  bad.heads = 3, bad.groups = 2;
  EXPECT_EQ(status(bad), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
  bad = good;
  bad.dtype = DType::kF32;
  EXPECT_EQ(status(bad), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
  bad = good;
  bad.depth = 12;
  EXPECT_EQ(status(bad), CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
  bad.depth = 16, bad.keys = 0;
  EXPECT_EQ(status(bad), CUDNN_STATUS_BAD_PARAM);
}

#endif  // TARN_CUDA_EMU

}  // namespace
}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
