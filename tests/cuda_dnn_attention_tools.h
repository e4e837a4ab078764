// cuda_dnn_attention_tools.h - shapes, runs and references for the tests of cuDNN's attention.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "gpu_tools.h"
#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/cuda/dnn_api.h"
#include "tarn/cuda/dnn_settings.h"

namespace tarn::cuda::dnn_attention_test {

using List = std::vector<Tensor>;

struct Case {
  const char* name;
  Shape q, k, v;
  bool causal = false;
};

inline const Case kCases[] = {
    {"even", {2, 2, 64, 16}, {2, 2, 128, 16}, {2, 2, 128, 16}},
    {"odd lengths", {1, 3, 77, 24}, {1, 3, 101, 24}, {1, 3, 101, 24}},
    {"causal", {2, 2, 70, 8}, {2, 2, 70, 8}, {2, 2, 70, 8}, true},
    {"causal, more keys", {1, 2, 65, 32}, {1, 2, 130, 32}, {1, 2, 130, 32}, true},
    {"causal, more queries", {1, 2, 130, 32}, {1, 2, 67, 32}, {1, 2, 67, 32}, true},
    {"widths differ", {2, 1, 66, 40}, {2, 1, 70, 40}, {2, 1, 70, 128}},
    {"grouped", {2, 6, 66, 8}, {2, 2, 70, 8}, {2, 2, 70, 16}, true},
    {"one group", {1, 4, 64, 16}, {1, 1, 70, 16}, {1, 1, 70, 8}},
    {"one key", {1, 2, 64, 8}, {1, 2, 1, 8}, {1, 2, 1, 8}}};

/// Largest error allowed, relative to the largest value. Own kernels and the CPU round results
/// only; cuDNN also the weights and their gradients, and each head's share of k's and v's
/// gradients.
inline const std::map<DType, double> kTolerances = {{DType::kF16, 4e-3}, {DType::kBF16, 2e-2}};

inline AttentionOptions options_of(const Case& c) {
  return {.causal = c.causal, .scale = 0.3, .enable_gqa = c.q[1] != c.k[1]};
}

inline Tensor wide(const Tensor& x) {
  return x.detach().to(kCPU).to(DType::kF64);
}

/// Result and gradients of q, k and v, from numbers that `dtype` holds.
inline List run(const Case& c, DType dtype, Device device, DType computed) {
  Generator numbers(1);
  List leaves;
  for (const Shape& s : {c.q, c.k, c.v}) {
    leaves.push_back(randn(s, {}, &numbers).to(dtype).to(computed).to(device));
    leaves.back().set_requires_grad();
  }
  const Tensor y = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], options_of(c));
  const Tensor g = randn(y.sizes(), {}, &numbers).to(dtype).to(computed).to(device);
  List out{y};
  for (const Tensor& t : grad(List{y}, leaves, List{g})) out.push_back(t);
  for (Tensor& t : out) t = wide(t);
  return out;
}

inline List on_device(const Case& c, DType dtype) {
  return run(c, dtype, kCuda, dtype);
}

inline List reference(const Case& c, DType dtype) {
  return run(c, dtype, kCPU, DType::kF64);
}

inline void expect_near(const List& got, const List& want, double tolerance, const char* name) {
  const char* const results[] = {"out", "gq", "gk", "gv"};
  for (size_t i = 0; i < got.size(); ++i) {
    const double scale = std::max(amax(abs(want[i])).item(), 1e-3);
    EXPECT_LE(amax(abs(sub(got[i], want[i]))).item(), tolerance * scale)
        << name << ", " << results[i];
  }
}

/// Every test begins and ends without plans, with the settings of the environment.
class CudaDnnAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    TARN_NEEDS_GPU();
    if (dnn_api() == nullptr) GTEST_SKIP() << "cuDNN is not here";
    if (dnn_api()->version() < 91600) GTEST_SKIP() << "cuDNN is older than 9.16";
    forget_dnn_plans();
  }
  void TearDown() override {
    if (!has_backend(DeviceType::kCUDA)) return;
    dnn_settings() = read_dnn_settings();
    forget_dnn_plans();
  }
};

}  // namespace tarn::cuda::dnn_attention_test
