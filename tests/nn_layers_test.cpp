// nn_layers_test.cpp - layers: what they compute beyond the operation they call, and initial
// values.
#include <cmath>

#include <gtest/gtest.h>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/nn/activation.h"
#include "tarn/nn/conv.h"
#include "tarn/nn/init.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/loss.h"
#include "tarn/nn/norm.h"
#include "tarn/nn/pool.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::nn {
namespace {

void expect_near(const Tensor& x, const std::vector<double>& expected, double tolerance = 1e-5) {
  const std::vector<double> values = x.to_vector<double>();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], tolerance) << i;
}

struct Moments {
  double mean, stddev, least, most;
};
Moments moments(const Tensor& x) {
  Moments m{0, 0, INFINITY, -INFINITY};
  const std::vector<double> values = x.to_vector<double>();
  for (double v : values) {
    m.mean += v / static_cast<double>(values.size());
    m.least = std::min(m.least, v);
    m.most = std::max(m.most, v);
  }
  for (double v : values) {
    m.stddev += (v - m.mean) * (v - m.mean) / static_cast<double>(values.size());
  }
  m.stddev = std::sqrt(m.stddev);
  return m;
}

TEST(InitTest, distributions_have_the_moments_of_their_formulas) {
  manual_seed(0);
  const Tensor w = empty({100, 50, 2, 2});  // fan_in 200, fan_out 400
  EXPECT_EQ(init::fans(w).in, 200);
  EXPECT_EQ(init::fans(w).out, 400);
  init::kaiming_normal_(
      w, {.mode = init::FanMode::kFanOut, .nonlinearity = init::Nonlinearity::kRelu});
  EXPECT_NEAR(moments(w).stddev, std::sqrt(2.0 / 400), 0.002);
  init::kaiming_uniform_(w, {.slope = std::sqrt(5.0)});
  EXPECT_NEAR(moments(w).most, 1 / std::sqrt(200.0), 1e-4);
  EXPECT_NEAR(moments(w).least, -1 / std::sqrt(200.0), 1e-4);
  init::xavier_uniform_(w);
  EXPECT_NEAR(moments(w).most, std::sqrt(6.0 / 600), 1e-4);
  init::xavier_normal_(w, 2);
  EXPECT_NEAR(moments(w).stddev, 2 * std::sqrt(2.0 / 600), 0.004);
  init::normal_(w, 3, 0.5);
  EXPECT_NEAR(moments(w).mean, 3, 0.02);
  EXPECT_NEAR(moments(w).stddev, 0.5, 0.02);
  init::trunc_normal_(w, 0, 1, -2, 2);
  EXPECT_NEAR(moments(w).stddev, 0.8796, 0.02);  // sqrt(1 - 4 phi(2) / (2 Phi(2) - 1))
  EXPECT_GE(moments(w).least, -2);
  EXPECT_LE(moments(w).most, 2);
  init::ones_(w);
  EXPECT_EQ(moments(w).least, 1);
  init::constant_(w, 2.5);
  EXPECT_EQ(moments(w).most, 2.5);
  init::zeros_(w);
  EXPECT_EQ(moments(w).most, 0);
}

TEST(InitTest, orthogonal_has_orthonormal_rows_or_columns_whichever_are_fewer) {
  manual_seed(3);
  for (const Shape& sizes : {Shape{5, 3}, {3, 5}, {4, 4}, {6, 2, 2}, {2, 3, 1, 2}, {1, 1}}) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      const Tensor w = empty(sizes, {.dtype = dtype}).set_requires_grad();
      init::orthogonal_(w, 2);
      EXPECT_FALSE(any(isnan(w)).item<bool>());
      const Tensor flat = reshape(w.detach(), {sizes[0], sizes.numel() / sizes[0]});
      const bool wide = flat.size(0) < flat.size(1);
      const Tensor product = wide ? matmul(flat, flat.t()) : matmul(flat.t(), flat);
      const Tensor want = mul(eye(product.size(0), product.size(0)), 4);  // the gain squared
      EXPECT_LT(amax(abs(sub(product, want))).item(), 1e-5) << sizes << " " << dtype;
    }
  }
  const Tensor strided = empty({3, 4}).t(), half = empty({3, 3}, {.dtype = DType::kBF16});
  init::orthogonal_(strided);
  EXPECT_NEAR(norm(strided).item(), std::sqrt(3.0), 1e-5);  // three columns of length 1
  init::orthogonal_(half);
  EXPECT_NEAR(norm(half).item(), std::sqrt(3.0), 0.05);
  init::orthogonal_(empty({0, 3}));
}

TEST(InitTest, orthogonal_matrices_are_spread_evenly) {
  // The trace of a uniformly random orthogonal matrix has mean 0 and variance 1; without the signs
  // of r, whose diagonal Householder's reflections leave mostly negative, the mean is far from 0.
  manual_seed(4);
  double mean = 0, variance = 0;
  constexpr int kDraws = 2000;
  for (int i = 0; i < kDraws; ++i) {
    const Tensor w = empty({3, 3});
    init::orthogonal_(w);
    const double trace = diagonal(w).sum().item();
    mean += trace / kDraws;
    variance += trace * trace / kDraws;
  }
  EXPECT_NEAR(mean, 0, 0.1);  // 4.5 standard errors
  EXPECT_NEAR(variance, 1, 0.2);
}

TEST(InitTest, gains_and_errors) {
  EXPECT_DOUBLE_EQ(init::gain(init::Nonlinearity::kTanh), 5.0 / 3);
  EXPECT_DOUBLE_EQ(init::gain(init::Nonlinearity::kLeakyRelu, 1), 1);
  EXPECT_MESSAGE(ShapeError, init::kaiming_normal_(empty({3})), "at least two dimensions");
  EXPECT_MESSAGE(ShapeError, init::orthogonal_(empty({3})),
                 "orthogonal_: needs a tensor of at least two dimensions; got x=[3] f32 cpu");
  EXPECT_MESSAGE(ValueError, init::trunc_normal_(empty({3}), 0, 1, 2, 1), "low < high");
  const Tensor whole = empty({3, 3}, {.dtype = DType::kI64});
  EXPECT_MESSAGE(DTypeError, init::trunc_normal_(whole), "trunc_normal_: x must be floating");
  EXPECT_MESSAGE(DTypeError, init::orthogonal_(whole), "orthogonal_: x must be floating");
}

TEST(InitTest, a_truncated_normal_stays_in_bounds_far_from_its_mean) {
  for (const double mean : {-100., -9., 9., 100.}) {
    const Tensor x = empty({1000});
    init::trunc_normal_(x, mean, 1, -2, 2);
    const Moments m = moments(x);
    EXPECT_GE(m.least, -2) << mean;
    EXPECT_LE(m.most, 2) << mean;
    EXPECT_TRUE(std::isfinite(m.mean)) << mean;  // no NaN
  }
}

TEST(LayerTest, options_that_make_no_layer_are_named) {
  EXPECT_MESSAGE(ValueError, Conv2d({.in = 1, .out = 1, .kernel = {3, 0}}),
                 "Conv2d: kernel must be positive; got 3x0");
  EXPECT_MESSAGE(ValueError, ConvTranspose1d({.in = 1, .out = 1, .kernel = -1}),
                 "ConvTranspose1d: kernel must be positive; got -1");
  EXPECT_MESSAGE(ValueError, PReLU({.count = -1}), "PReLU: count must be positive; got -1");
  EXPECT_MESSAGE(ValueError, RMSNorm({}), "RMSNorm: size must be positive; got 0");
}

TEST(InitTest, a_seed_decides_everything) {
  manual_seed(7);
  const Linear a({.in = 5, .out = 4});
  manual_seed(7);
  const Linear b({.in = 5, .out = 4});
  EXPECT_EQ(a.weight.to_vector<float>(), b.weight.to_vector<float>());
  EXPECT_EQ(a.bias.to_vector<float>(), b.bias.to_vector<float>());
}

TEST(LinearTest, stays_within_the_default_bound_and_checks_its_options) {
  const Linear layer({.in = 16, .out = 300});
  EXPECT_LE(moments(layer.weight).most, 0.25);
  EXPECT_GT(moments(layer.weight).most, 0.24);
  EXPECT_LE(moments(layer.bias).most, 0.25);
  EXPECT_MESSAGE(ValueError, Linear({.in = 0, .out = 1}), "in and out must be positive; got in=0");
}

TEST(Conv2dTest, has_the_sizes_of_its_options) {
  Conv2d conv({.in = 4, .out = 6, .kernel = {3, 5}, .stride = 2, .padding = {1, 2}, .groups = 2});
  EXPECT_EQ(conv.weight.sizes(), (Shape{6, 2, 3, 5}));
  EXPECT_EQ(conv(ones({2, 4, 8, 9})).sizes(), (Shape{2, 6, 4, 5}));
  EXPECT_EQ(conv.details(), "4, 6, kernel=3x5, stride=2, padding=1x2, groups=2");
  EXPECT_LE(moments(conv.weight).most, 1 / std::sqrt(30.0));
  EXPECT_MESSAGE(ValueError, Conv2d({.in = 3, .out = 4, .groups = 2}), "multiples of groups");
  Conv1d line({.in = 2, .out = 3, .kernel = 3, .padding = 1, .bias = false});
  EXPECT_EQ(line(ones({1, 2, 7})).sizes(), (Shape{1, 3, 7}));
  EXPECT_FALSE(line.bias.defined());
}

TEST(BatchNormTest, moves_running_statistics_as_pytorch_does) {
  BatchNorm1d bn({.features = 2});
  const Tensor x = tensor({1, 2, 3, 6, 5, 4}, {3, 2});
  bn(x);
  expect_near(bn.running_mean, {0.3, 0.4});
  expect_near(bn.running_var, {1.3, 1.3});  // 0.9 * 1 + 0.1 * unbiased 4
  EXPECT_EQ(bn.num_batches_tracked.item<int>(), 1);
  bn.eval();
  bn(x);
  EXPECT_EQ(bn.num_batches_tracked.item<int>(), 1);
  expect_near(bn.running_mean, {0.3, 0.4});
}

TEST(BatchNormTest, averages_all_batches_without_momentum) {
  BatchNorm1d bn({.features = 1, .momentum = std::nullopt});
  bn(tensor({0, 2}, {2, 1}));
  bn(tensor({4, 6}, {2, 1}));
  expect_near(bn.running_mean, {3});  // (1 + 5) / 2
  expect_near(bn.running_var, {2});   // unbiased, both 2
}

TEST(BatchNormTest, fuses_what_the_parts_compute) {
  manual_seed(1);
  BatchNorm2d a({.features = 3}), b({.features = 3});
  const Tensor x = randn({2, 3, 4, 4}), r = randn({2, 3, 4, 4});
  EXPECT_TRUE(allclose(a.relu(x), tarn::relu(b(x)), 1e-5, 1e-6));
  EXPECT_TRUE(allclose(a.add_relu(x, r), tarn::relu(b(x) + r), 1e-5, 1e-6));
  EXPECT_EQ(a.num_batches_tracked.item<int>(), 2);
  EXPECT_MESSAGE(ShapeError, a(ones({2, 3})), "BatchNorm2d: x must be [N, C, H, W]; got x=[2, 3]");
  EXPECT_MESSAGE(ValueError, BatchNorm2d({.features = 0}), "features must be positive");
  BatchNorm1d line({.features = 3});
  EXPECT_MESSAGE(ShapeError, line(ones({3})), "BatchNorm1d: x must be [N, C] or [N, C, L]");
}

TEST(BatchNormTest, without_statistics_uses_the_batch_always) {
  BatchNorm1d bn({.features = 1, .affine = false, .track_running_stats = false});
  EXPECT_EQ(bn.state_dict().size(), 0u);
  bn.eval();
  expect_near(bn(tensor({1, 3}, {2, 1})), {-1, 1}, 1e-4);
}

TEST(NormTest, layer_and_group_norm_normalise_their_parts) {
  LayerNorm layer({.shape = {4}});
  expect_near(layer(tensor({1, 2, 3, 4}, {1, 4})), {-1.3416355, -0.4472119, 0.4472118, 1.3416355});
  GroupNorm group({.groups = 2, .channels = 4});
  expect_near(group(tensor({1, 3, 10, 30}, {1, 4, 1, 1})), {-1, 1, -1, 1}, 1e-4);
  EXPECT_MESSAGE(ValueError, GroupNorm({.groups = 3, .channels = 4}), "a multiple of groups");
}

// Anomaly mode has the steps done one by one.
template <class Layer>
void expect_fused_as_watched(Layer& layer) {
  const Tensor low = randn({3, 4}).to(DType::kBF16), full = randn({3, 4});
  const Tensor wide = randn({3, 4}, {.dtype = DType::kF64});
  const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
  for (const auto& [x, residual] :
       {std::pair(low, low), std::pair(low, full), std::pair(full, low), std::pair(wide, full)}) {
    const AddNormResult fused = layer.add(x, residual);
    const AnomalyGuard watching;
    const AddNormResult steps = layer.add(x, residual);
    EXPECT_EQ(fused.sum.dtype(), steps.sum.dtype());
    EXPECT_EQ(fused.y.dtype(), steps.y.dtype());
    expect_near(fused.y, steps.y.template to_vector<double>(),
                is_half(fused.y.dtype()) ? 0.1 : 1e-5);
  }
}

TEST(NormTest, a_fused_sum_has_the_dtypes_of_its_steps_also_under_autocast) {
  LayerNorm layer({.shape = {4}});
  expect_fused_as_watched(layer);
  RMSNorm rms({.size = 4});
  expect_fused_as_watched(rms);
  layer.to(DType::kBF16);
  expect_fused_as_watched(layer);
  rms.to(DType::kBF16);
  expect_fused_as_watched(rms);
}

TEST(DropoutTest, drops_in_training_only) {
  manual_seed(0);
  Dropout drop({.p = 0.25});
  const Tensor x = ones({10000});
  const Moments m = moments(drop(x));
  EXPECT_NEAR(m.mean, 1, 0.03);
  EXPECT_NEAR(m.most, 1 / 0.75, 1e-6);
  drop.eval();
  EXPECT_EQ(moments(drop(x)).least, 1);
  EXPECT_MESSAGE(ValueError, Dropout({.p = 1.5}), "p must be in [0, 1]; got 1.5");
}

TEST(EmbeddingTest, looks_rows_up_and_keeps_padding_at_zero) {
  Embedding table({.count = 5, .size = 3, .padding = 2});
  const Tensor y = table(tensor({2, 4}, {.dtype = DType::kI64}));
  EXPECT_EQ(y.sizes(), (Shape{2, 3}));
  expect_near(y.select(0, 0).detach(), {0, 0, 0});
  y.sum().backward();
  expect_near(table.weight.grad().sum({1}), {0, 0, 0, 0, 3});
  EXPECT_MESSAGE(ValueError, Embedding({.count = 2, .size = 1, .padding = 2}), "padding=2");
}

TEST(ActivationTest, modules_call_their_functions) {
  const Tensor x = tensor({-2, 0, 3});
  expect_near(ReLU()(x), {0, 0, 3});
  expect_near(LeakyReLU({.slope = 0.5})(x), {-1, 0, 3});
  expect_near(GELU()(tensor({1})), {0.84134471});
  expect_near(GELU({.tanh = true})(tensor({1})), {0.84119201});
  expect_near(Hardtanh()(x), {-1, 0, 1});
  expect_near(Flatten()(ones({2, 3, 4})).sum({1}), {12, 12});
}

TEST(PoolTest, layers_pass_their_options_on) {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, {1, 1, 4, 4});
  expect_near(MaxPool2d({.kernel = 2})(x), {6, 8, 14, 16});
  expect_near(AvgPool2d({.kernel = 2})(x), {3.5, 5.5, 11.5, 13.5});
  expect_near(AdaptiveAvgPool2d({.output = 1})(x), {8.5});
  EXPECT_EQ(MaxPool2d({.kernel = 3, .stride = 2, .padding = 1})(x).sizes(), (Shape{1, 1, 2, 2}));
}

TEST(LossTest, modules_call_their_functions) {
  const Tensor logits = tensor({1, 2, 3, 1, 2, 0.5, 0, 0, 0}, {3, 3});
  const Tensor target = tensor({2, -100, 1}, {.dtype = DType::kI64});
  EXPECT_NEAR(CrossEntropyLoss()(logits, target).item(), 0.75310910, 1e-5);
  EXPECT_NEAR(CrossEntropyLoss({.label_smoothing = 0.1}, tensor({1, 2, 3}))(logits, target).item(),
              0.70252299, 1e-5);
  EXPECT_NEAR(MSELoss()(tensor({1, 3}), tensor({0, 0})).item(), 5, 1e-6);
  EXPECT_NEAR(L1Loss(Reduction::kSum)(tensor({1, -3}), tensor({0, 0})).item(), 4, 1e-6);
  EXPECT_NEAR(BCEWithLogitsLoss()(tensor({0}), tensor({1})).item(), std::log(2.0), 1e-6);
}

}  // namespace
}  // namespace tarn::nn
