// cuda_dnn_graphs_test.cpp - the real cuDNN accepts our graphs for a GPU that is described to it.
//
// Needs the library, not a GPU: cuDNN 9.8 and later make plans for a device given by its
// properties. What the plans compute is tested where they run (cuda_dnn_test.cpp).
#if TARN_HAVE_CUDNN && !defined(TARN_CUDA_EMU)
#include <cudnn_version.h>
#if CUDNN_VERSION >= 90800

#include <optional>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tarn/cuda/dnn_attention_graph.h"
#include "tarn/cuda/dnn_graph.h"

namespace tarn::cuda {
namespace {

constexpr int64_t kWorkspace = int64_t{1} << 30;

DnnDescriptor describe_h200() {
  const std::string text = R"({
    "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0,
    "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 150754820096,
    "multiProcessorCount": 132, "warpSize": 32, "l2CacheSize": 62914560,
    "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
    "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048, "maxCtasPerSM": 32, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64]})";
  DnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "device properties");
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             static_cast<int64_t>(text.size()), text.data());
  device.finalize();
  return device;
}

struct Case {
  const char* name;
  int c, k, size, kernel, stride, pad, groups, dilation;
};

const Case kCases[] = {
    {"3x3", 64, 128, 32, 3, 1, 1, 1, 1},      {"1x1", 64, 256, 32, 1, 1, 0, 1, 1},
    {"stride 2", 64, 128, 32, 3, 2, 1, 1, 1}, {"stem", 3, 64, 64, 7, 2, 3, 1, 1},
    {"groups", 64, 64, 32, 3, 1, 1, 4, 1},    {"depthwise", 64, 64, 32, 3, 1, 1, 64, 1},
    {"dilated", 64, 64, 32, 3, 1, 2, 1, 2},   {"odd channels", 19, 17, 9, 3, 1, 1, 1, 1},
};

DnnConv make_conv(const Case& c, ConvPass pass, DType dtype) {
  ConvShape p;
  p.n = 8, p.c = c.c, p.k = c.k, p.h = p.w = c.size, p.r = p.s = c.kernel;
  p.stride_h = p.stride_w = c.stride, p.pad_h = p.pad_w = c.pad;
  p.dilation_h = p.dilation_w = c.dilation, p.groups = c.groups;
  p.oh = p.ow = (c.size + 2 * c.pad - c.dilation * (c.kernel - 1) - 1) / c.stride + 1;
  return {.pass = pass, .dtype = dtype, .shape = p};
}

/// The driver, or what takes its place where there is none (cuda_no_driver.cpp). cuDNN then finds
/// it by its name.
void load_driver() {
  if (dlopen("libcuda.so.1", RTLD_NOW) || dlopen(TARN_NO_DRIVER, RTLD_NOW)) return;
  FAIL() << dlerror();
}

/// cuDNN where it can be told of a device; null, with the test skipped, where it cannot.
class DnnGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    load_driver();
    if (dnn_api() == nullptr) GTEST_SKIP() << "cuDNN is not here";
    if (dnn_api()->version() < 90800) GTEST_SKIP() << "cuDNN is older than 9.8";
    device_.emplace(describe_h200());
  }
  template <class Problem>
  std::vector<DnnPlan> plans(const Problem& problem, int64_t workspace = kWorkspace,
                             size_t most = 1000) const {
    const DnnTarget target{.described = &*device_};
    const DnnGraph graph = make_graph(problem, target);
    return make_plans(graph, problem.numerics(), target, workspace, most);
  }

  std::optional<DnnDescriptor> device_;
};

constexpr ConvPass kPasses[] = {ConvPass::kForward, ConvPass::kBackwardData,
                                ConvPass::kBackwardWeight};

TEST_F(DnnGraphs, every_pass_type_and_shape_has_a_plan) {
  for (const Case& c : kCases) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (ConvPass pass : kPasses) {
        const DnnConv conv = make_conv(c, pass, dtype);
        EXPECT_FALSE(plans(conv, kWorkspace, 1).empty()) << c.name << ": " << conv.describe();
      }
      DnnConv conv = make_conv(c, ConvPass::kForward, dtype);
      conv.bias = true;
      EXPECT_FALSE(plans(conv, kWorkspace, 1).empty()) << c.name << " with bias";
      conv.alignment = item_size(dtype);
      EXPECT_FALSE(plans(conv, kWorkspace, 1).empty()) << c.name << " unaligned";
    }
  }
}

TEST_F(DnnGraphs, tf32_adds_plans_only_when_it_is_allowed) {
  for (ConvPass pass : kPasses) {
    DnnConv conv = make_conv(kCases[0], pass, DType::kF32);
    const size_t exact = plans(conv).size();
    conv.tf32 = true;
    EXPECT_GT(plans(conv).size(), exact) << conv.describe();
  }
}

TEST_F(DnnGraphs, plans_that_need_too_much_workspace_are_left_out) {
  const DnnConv conv = make_conv(kCases[0], ConvPass::kBackwardWeight, DType::kBF16);
  size_t with_workspace = 0;
  for (const DnnPlan& plan : plans(conv)) with_workspace += plan.workspace > 0;
  EXPECT_GT(with_workspace, 0u);
  for (const DnnPlan& plan : plans(conv, 0)) EXPECT_EQ(plan.workspace, 0);
}

TEST_F(DnnGraphs, what_does_not_fit_is_refused_with_cudnns_words) {
  DnnConv conv = make_conv(kCases[0], ConvPass::kForward, DType::kF32);
  conv.shape.oh += 1;
  try {
    plans(conv);
    FAIL() << "accepted";
  } catch (const DnnError& e) {
    EXPECT_TRUE(e.bad_parameter() || e.not_supported()) << e.what();
    EXPECT_NE(std::string(e.what()).find("cuda: cudnnBackendFinalize("), std::string::npos)
        << e.what();
  }
}

struct AttentionCase {
  const char* name;
  int64_t batch, heads, groups, queries, keys, depth, width;
};

const AttentionCase kAttentions[] = {
    {"even", 2, 8, 8, 256, 256, 64, 64},          {"odd lengths", 3, 5, 5, 77, 301, 96, 96},
    {"one head", 1, 1, 1, 301, 77, 8, 8},         {"one key", 2, 2, 2, 64, 1, 64, 64},
    {"narrow values", 2, 4, 4, 100, 90, 128, 24}, {"wide values", 2, 4, 4, 100, 90, 40, 120},
    {"grouped", 2, 8, 2, 130, 130, 64, 64},       {"one group", 2, 6, 1, 130, 77, 128, 128},
    {"GPT-2", 16, 12, 12, 1024, 1024, 64, 64}};

/// Operands [B, heads, rows, width]; `packed`: as parts of one [B, rows, 3, heads, width].
DnnAttention make_attention(const AttentionCase& c, AttentionPass pass, bool packed = false) {
  const auto heads = [&](int64_t count, int64_t rows, int64_t width) {
    if (!packed) return DnnHeads{count * rows * width, rows * width, width};
    return DnnHeads{3 * rows * count * width, width, 3 * count * width};
  };
  DnnAttention a{.pass = pass, .dtype = DType::kBF16, .batch = c.batch, .heads = c.heads};
  a.groups = c.groups, a.queries = c.queries, a.keys = c.keys, a.depth = c.depth, a.width = c.width;
  a.q = a.gq = heads(c.heads, c.queries, c.depth);
  a.k = a.gk = heads(c.groups, c.keys, c.depth);
  a.v = a.gv = heads(c.groups, c.keys, c.width);
  a.out = a.gout = heads(c.heads, c.queries, c.width);
  return a;
}

// A plan takes half a second to make, so not everything is combined with everything.
TEST_F(DnnGraphs, attention_has_plans) {
  bool causal = false;
  for (const AttentionCase& c : kAttentions) {
    causal = !causal;
    for (AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
      DnnAttention a = make_attention(c, pass);
      a.causal = causal;
      EXPECT_FALSE(plans(a, kWorkspace, 1).empty()) << c.name << ": " << a.describe();
    }
  }
}

TEST_F(DnnGraphs, attention_has_plans_for_every_layout_and_dtype) {
  for (AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
    DnnAttention a = make_attention(kAttentions[0], pass, true);
    EXPECT_FALSE(plans(a, kWorkspace, 1).empty()) << "packed: " << a.describe();
    a.dtype = DType::kF16;
    EXPECT_FALSE(plans(a, kWorkspace, 1).empty()) << "packed: " << a.describe();
    a.causal = true, a.deterministic = false;
    EXPECT_FALSE(plans(a, kWorkspace, 1).empty()) << "packed, any order: " << a.describe();
  }
}

TEST_F(DnnGraphs, deterministic_attention_keeps_score_gradients_in_its_workspace) {
  // What dnn_attention.cpp cuts batches by: scores in tiles of 64 x 128, 2 bytes each; with shared
  // heads also the gradients of k and v per head.
  for (const AttentionCase& c : {kAttentions[1], kAttentions[6]}) {
    const DnnAttention a = make_attention(c, AttentionPass::kBackward);
    const int64_t scores = (c.queries + 63) / 64 * 64 * ((c.keys + 127) / 128 * 128);
    const int64_t shared = c.groups < c.heads ? c.keys * (c.depth + c.width) : 0;
    const int64_t want = c.batch * c.heads * (scores + shared) * 2;
    const std::vector<DnnPlan> found = plans(a, kWorkspace, 1);
    ASSERT_FALSE(found.empty());
    EXPECT_GE(found[0].workspace, c.batch * c.heads * c.queries * c.keys * 2) << c.name;
    EXPECT_LE(found[0].workspace, want + 4096) << c.name;
  }
}

TEST_F(DnnGraphs, attention_that_does_not_fit_has_no_plan) {
  DnnAttention a = make_attention({"", 2, 8, 8, 256, 256, 68, 68}, AttentionPass::kForward);
  try {
    EXPECT_TRUE(plans(a).empty());
  } catch (const DnnError& e) {
    EXPECT_TRUE(e.bad_parameter() || e.not_supported()) << e.what();
  }
}

}  // namespace
}  // namespace tarn::cuda

#endif
#endif
