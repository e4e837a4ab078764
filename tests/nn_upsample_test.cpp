// nn_upsample_test.cpp - transposed convolutions, Upsample, PixelShuffle; and PReLU, softmax and
// Dropout2d. Numbers are torch 1.13's.
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/gradcheck.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/nn/activation.h"
#include "tarn/nn/conv.h"
#include "tarn/nn/sequential.h"
#include "tarn/nn/upsample.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::nn {
namespace {

using Mode = InterpolateMode;

/// Element i is (3 i^2 + i) mod 13 - 4.
Tensor pattern(const Shape& sizes) {
  std::vector<float> values(static_cast<size_t>(sizes.numel()));
  for (int64_t i = 0; i < sizes.numel(); ++i) {
    values[static_cast<size_t>(i)] = static_cast<float>((3 * i * i + i) % 13 - 4);
  }
  return from_vector(values, sizes);
}

template <class Layer>
void fill(Layer& layer) {
  layer.weight.detach().copy_(pattern(layer.weight.sizes()));
  layer.bias.detach().copy_(pattern(layer.bias.sizes()));
}

TEST(ConvTransposeTest, gives_pytorchs_numbers) {
  ConvTranspose2d layer({.in = 2,
                         .out = 4,
                         .kernel = {3, 2},
                         .stride = {2, 1},
                         .padding = {1, 0},
                         .output_padding = {1, 0},
                         .dilation = {1, 2},
                         .groups = 2});
  EXPECT_EQ(layer.weight.sizes(), (Shape{2, 2, 3, 2}));
  fill(layer);
  const Tensor y = layer(pattern({1, 2, 2, 2}));
  EXPECT_EQ(y.sizes(), (Shape{1, 4, 4, 4}));
  EXPECT_EQ(
      y.to_vector<int>(),
      (std::vector<int>{8,   -4,  -4, -4, 24,  -4,  4,   -4,  5,  -4, -4,  -4,  8,   -4, 2,   -4,
                        -4,  0,   -4, 0,  -46, 0,   -45, 0,   -3, 0,  -3,  0,   -21, 0,  -18, 0,
                        -3,  -3,  9,  3,  -15, -17, -11, -23, -3, -3, -21, -24, -3,  -3, -27, -31,
                        -28, -14, -4, -2, -16, -16, 8,   28,  42, 49, 6,   7,   6,   7,  42,  49}));
  ConvTranspose1d line(
      {.in = 2, .out = 3, .kernel = 3, .stride = 2, .padding = 1, .output_padding = 1});
  EXPECT_EQ(line.weight.sizes(), (Shape{2, 3, 3}));
  fill(line);
  const Tensor z = line(pattern({1, 2, 3}));
  EXPECT_EQ(z.sizes(), (Shape{1, 3, 6}));
  EXPECT_EQ(z.to_vector<int>(), (std::vector<int>{-4, 4, -32, -18, -18, -7, 16, 16, 16, 4, 20, 6,
                                                  -31, 5, -3, 1, -24, 2}));
  EXPECT_TRUE(equal(line(pattern({2, 3})), z.squeeze(0)));
}

TEST(ConvTransposeTest, starts_and_prints_as_its_sizes_say) {
  manual_seed(0);
  ConvTranspose2d layer({.in = 6, .out = 32, .kernel = 4, .stride = 2, .padding = 1});
  EXPECT_EQ(layer(ones({2, 6, 5, 7})).sizes(), (Shape{2, 32, 10, 14}));
  const double bound = 1 / std::sqrt(32.0 * 16);  // fan in: out / groups * kernel
  EXPECT_LE(amax(abs(layer.weight)).item(), bound);
  EXPECT_GT(amax(abs(layer.weight)).item(), 0.95 * bound);
  EXPECT_LE(amax(abs(layer.bias)).item(), bound);
  EXPECT_EQ(layer.details(), "6, 32, kernel=4, stride=2, padding=1");
  EXPECT_FALSE(ConvTranspose1d({.in = 1, .out = 1, .bias = false}).bias.defined());
  EXPECT_EQ(ConvTranspose1d({.in = 1, .out = 2, .kernel = 3, .bias = false}).details(),
            "1, 2, kernel=3, no bias");
}

TEST(ConvTransposeTest, errors_name_the_options) {
  EXPECT_MESSAGE(ValueError, ConvTranspose2d({.in = 3, .out = 4, .groups = 2}),
                 "ConvTranspose2d: in and out must be positive multiples of groups; got in=");
  EXPECT_MESSAGE(ValueError, ConvTranspose1d({.in = 0, .out = 4}), "ConvTranspose1d: in and out");
  ConvTranspose2d layer({.in = 1, .out = 1, .output_padding = 1});
  EXPECT_MESSAGE(ValueError, layer(ones({1, 1, 2, 2})),
                 "output padding must be at least 0 and smaller");
  ConvTranspose1d line({.in = 2, .out = 1});
  EXPECT_MESSAGE(ShapeError, line(ones({2, 2, 3, 3})),
                 "conv_transpose1d: x must be [N, C, L] or [C, L]");
}

TEST(UpsampleTest, passes_its_options_on) {
  const Tensor x = randn({2, 3, 4, 5});
  Sequential net;
  net.add<Upsample>({.scale_factor = 2});
  net.add<Upsample>({.size = {9, 11}, .mode = Mode::kBilinear, .align_corners = true});
  net.add<Upsample>({.scale_factor = {1.5, 1}, .mode = Mode::kBicubic});
  EXPECT_TRUE(equal(net[0](x), interpolate(x, {.scale_factor = 2})));
  EXPECT_EQ(net(x).sizes(), (Shape{2, 3, 13, 11}));
  EXPECT_EQ(net[0].details(), "scale_factor=2, mode=nearest");
  EXPECT_EQ(net[1].details(), "size=[9, 11], mode=bilinear, align_corners");
  EXPECT_EQ(net[2].details(), "scale_factor=1.5x1, mode=bicubic");
  PixelShuffle shuffle({.factor = 2});
  EXPECT_TRUE(equal(shuffle(ones({1, 8, 2, 2})), ones({1, 2, 4, 4})));
  EXPECT_EQ(shuffle.details(), "2");
}

TEST(PReluTest, has_a_slope_for_all_or_for_each_channel) {
  PReLU one;
  const Tensor x = tensor({-4, 2, 0, -8, 3, -1}, {1, 3, 2});
  EXPECT_EQ(one(x).to_vector<float>(), (std::vector<float>{-1, 2, 0, -2, 3, -0.25}));
  EXPECT_EQ(one(tensor(-2)).sizes(), Shape());
  one(tensor({INFINITY, -3})).sum().backward();
  EXPECT_EQ(one.weight.grad().item(), -3);  // nothing comes from where the slope does not act
  PReLU each({.count = 3, .init = 0.5});
  each.weight.detach().copy_(tensor({0.5, 0.25, 2}));
  EXPECT_EQ(each(x).to_vector<float>(), (std::vector<float>{-2, 2, 0, -2, 3, -2}));
  each(x).sum().backward();  // the sum of x where it is not positive
  EXPECT_EQ(each.weight.grad().to_vector<float>(), (std::vector<float>{-4, -8, -1}));
  EXPECT_MESSAGE(ShapeError, each(ones({2, 4})), "PReLU: x must be [N, 3, ...]; got [2, 4]");
  EXPECT_MESSAGE(ValueError, PReLU({.count = 0}), "count must be positive; got 0");
}

TEST(SoftmaxTest, modules_call_their_functions) {
  const Tensor x = randn({3, 4});
  EXPECT_TRUE(equal(Softmax()(x), softmax(x, 1)));
  EXPECT_TRUE(equal(Softmax({.dim = 0})(x), softmax(x, 0)));
  EXPECT_TRUE(equal(LogSoftmax({.dim = 1})(x), log_softmax(x, 1)));
  EXPECT_EQ(Softmax().details(), "dim=-1");
  EXPECT_EQ(LogSoftmax({.dim = 1}).details(), "dim=1");
}

TEST(Dropout2dTest, drops_whole_channels_in_training_only) {
  manual_seed(0);
  Dropout2d drop({.p = 0.25});
  const Tensor y = drop(ones({50, 40, 2, 3}));
  const Tensor least = amin(y, {2, 3}), most = amax(y, {2, 3});
  EXPECT_TRUE(equal(least, most));
  const std::vector<float> kept = most.to_vector<float>();
  EXPECT_EQ(std::set<float>(kept.begin(), kept.end()).size(), 2u);
  EXPECT_NEAR(y.mean().item(), 1, 0.05);
  drop.eval();
  EXPECT_TRUE(equal(drop(ones({2, 3, 4})), ones({2, 3, 4})));
  EXPECT_MESSAGE(ValueError, Dropout2d({.p = -1}), "Dropout2d: p must be in [0, 1]; got -1");
}

}  // namespace
}  // namespace tarn::nn
