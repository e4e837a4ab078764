// autograd_interpolate_test.cpp - resampling and pixel shuffling, beside torch 1.13's numbers. (Its
// own operator samples, with gradients, are in autograd_opinfo_test.cpp.)
#include "tests_throws.h"
#include <gtest/gtest.h>

#include "tarn/autograd/functions.h"
#include "tarn/autograd/gradcheck.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"

namespace tarn {
namespace {

using Mode = InterpolateMode;
using Values = std::vector<double>;

/// Element i is (3 i^2 + i) mod 13 - 4: what the numbers below are of.
Tensor pattern(const Shape& sizes, DType dtype = DType::kF64) {
  Values values(static_cast<size_t>(sizes.numel()));
  for (int64_t i = 0; i < sizes.numel(); ++i) {
    values[static_cast<size_t>(i)] = static_cast<double>((3 * i * i + i) % 13 - 4);
  }
  return from_vector(values, sizes).to(dtype);
}

void expect_values(const Tensor& x, const Shape& sizes, const Values& want) {
  EXPECT_EQ(x.sizes(), sizes);
  const Values got = x.to_vector<double>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-5) << i;
}

TEST(Interpolate, nearest_takes_the_place_at_floor_of_i_times_in_over_out) {
  expect_values(interpolate(pattern({1, 1, 5}), {.size = {7}}), {1, 1, 7},
                {-4, -4, 0, -3, -3, 0, -4});
  expect_values(interpolate(pattern({1, 1, 3, 5}), {.scale_factor = 1.5}), {1, 1, 4, 7},
                {-4, -4, 0, -3, -3, 0, -4, -4, -4, 0, -3, -3, 0,  -4,
                 -2, -2, 6, 7,  7,  1, 1,  7,  7,  6, -2, -2, -4, 0});
  expect_values(interpolate(pattern({1, 1, 3, 5}), {.size = {2, 3}}), {1, 1, 2, 3},
                {-4, 0, 0, -2, 6, 1});
  expect_values(
      interpolate(pattern({1, 1, 2, 3, 2}), {.scale_factor = {1, 1.5, 3}}), {1, 1, 2, 4, 6},
      {-4, -4, -4, 0, 0, 0, -4, -4, -4, 0, 0, 0, -3, -3, -3, 0, 0, 0, -4, -4, -4, -2, -2, -2,
       6,  6,  6,  7, 7, 7, 6,  6,  6,  7, 7, 7, 1,  1,  1,  1, 1, 1, 7,  7,  7,  6,  6,  6});
}

TEST(Interpolate, nearest_by_whole_factors_repeats_in_every_layout_and_dtype) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI64, DType::kU8}) {
    const Tensor x = arange(2 * 3 * 2 * 5, {.dtype = DType::kI64}).view({2, 3, 2, 5}).to(dtype);
    const Tensor want = repeat_interleave(repeat_interleave(x, 2, 2), 3, 3);
    const Tensor y = interpolate(x, {.scale_factor = {2, 3}});
    EXPECT_TRUE(equal(y, want)) << dtype;
    const Tensor last = interpolate(x.contiguous(MemoryFormat::kChannelsLast), {.size = {4, 15}});
    EXPECT_TRUE(equal(last, want)) << dtype;
    EXPECT_TRUE(last.is_contiguous(MemoryFormat::kChannelsLast));
    EXPECT_TRUE(
        equal(interpolate(x.transpose(2, 3), {.scale_factor = {3, 2}}), want.transpose(2, 3)));
  }
  // All three dimensions at once: eight while they are repeated.
  const Tensor x = pattern({1, 2, 2, 2, 3});
  Tensor want = x;
  for (int d = 2; d < 5; ++d) want = repeat_interleave(want, 2, d);
  EXPECT_TRUE(equal(interpolate(x, {.scale_factor = 2}), want));
}

TEST(Interpolate, nearest_rounds_its_places_as_pytorch_does) {
  // In f32 2 / 82 is a little less than 1 / 41, and so is 41 times it less than 1: place 41 is not
  // yet the second. In f64 it is.
  const auto places = [](DType dtype) {
    const Tensor y = interpolate(pattern({1, 1, 2}, dtype), {.size = {82}});
    return y.narrow(2, 40, 3).to_vector<int>();
  };
  EXPECT_EQ(places(DType::kF32), (std::vector<int>{-4, -4, 0}));
  EXPECT_EQ(places(DType::kF64), (std::vector<int>{-4, 0, 0}));
  // 49 * (2 / 98) in f64 is a little less than 1, and 1 in f32, where PyTorch rounds it down.
  const Tensor far = interpolate(tensor({0, 1}, {1, 1, 2}, {.dtype = DType::kF64}), {.size = {98}});
  EXPECT_EQ(far.narrow(2, 48, 2).to_vector<int>(), (std::vector<int>{0, 1}));
  // From 5 to 5 by a factor of 1.1 places move (floor(i / 1.1)).
  expect_values(interpolate(pattern({1, 1, 5}), {.scale_factor = 1.1}), {1, 1, 5},
                {-4, -4, 0, -3, 0});
  expect_values(interpolate(pattern({1, 1, 1, 5}), {.scale_factor = 1.1}), {1, 1, 1, 5},
                {-4, -4, 0, -3, 0});
  EXPECT_THROWS_WITH(interpolate(pattern({1, 1, 5}), {.scale_factor = 1e300}), ShapeError,
                     "a size must be below 2^31");
}

TEST(Interpolate, linear_modes_weigh_neighbours) {
  expect_values(interpolate(pattern({1, 1, 5}), {.scale_factor = 1.5, .mode = Mode::kLinear}),
                {1, 1, 7}, {-4, -2, -0.5, -2.5, -1.5, -0.666667, -3.33333});
  expect_values(
      interpolate(pattern({1, 1, 5}), {.size = {7}, .mode = Mode::kLinear, .align_corners = true}),
      {1, 1, 7}, {-4, -1.33333, -1, -3, -1, -1.33333, -4});
  const Tensor x = pattern({1, 1, 3, 2});
  expect_values(interpolate(x, {.scale_factor = 1.5, .mode = Mode::kBilinear}), {1, 1, 4, 3},
                {-4, -2, 0, -3.5, -1.75, 0, -3.16667, -1.75, -0.333333, -3.83333, -2.75, -1.66667});
  expect_values(interpolate(x, {.size = {5, 3}, .mode = Mode::kBilinear}), {1, 1, 5, 3},
                {-4, -2, 0, -3.6, -1.8, 0, -3, -1.5, 0, -3.6, -2.4, -1.2, -4, -3, -2});
  expect_values(interpolate(x, {.size = {5, 3}, .mode = Mode::kBilinear, .align_corners = true}),
                {1, 1, 5, 3},
                {-4, -2, 0, -3.5, -1.75, 0, -3, -1.5, 0, -3.5, -2.25, -1, -4, -3, -2});
  expect_values(interpolate(pattern({1, 1, 5, 4}), {.size = {2, 3}, .mode = Mode::kBilinear}),
                {1, 1, 2, 3}, {-3.58333, 1.125, 5, -1.91667, -2.25, -0.708333});
  expect_values(
      interpolate(pattern({1, 1, 3, 4}), {.scale_factor = {1.7, 0.6}, .mode = Mode::kBilinear}),
      {1, 1, 5, 2},
      {-2.66667, -3, -2.92157, 0.441176, -3.31373, 5.73529, -0.911765, 6.55882, 1, 7});
  expect_values(
      interpolate(pattern({1, 1, 2, 2, 2}), {.size = {3, 2, 3}, .mode = Mode::kTrilinear}),
      {1, 1, 3, 2, 3},
      {-4, -2, 0, -3, -1.5, 0, -4, -2.5, -1, 1.5, 2.5, 3.5, -4, -3, -2, 6, 6.5, 7});
}

TEST(Interpolate, bicubic_and_area_give_pytorchs_numbers) {
  expect_values(interpolate(pattern({1, 1, 3, 2}), {.size = {4, 3}, .mode = Mode::kBicubic}),
                {1, 1, 4, 3},
                {-4.42523, -2.03589, 0.353453, -3.55172, -1.51538, 0.52096, -3.47009, -1.9856,
                 -0.501104, -4.23916, -3.10767, -1.97617});
  expect_values(interpolate(pattern({1, 1, 3, 3}),
                            {.scale_factor = 1.5, .mode = Mode::kBicubic, .align_corners = true}),
                {1, 1, 4, 4},
                {-4, -0.925926, -0.5, -3, -1.92593, -3.46776, -3.77538, -2.64815, 2.33333,
                 0.0579561, -1.33813, -0.944444, 6, 7.35185, 5.22222, 1});
  expect_values(interpolate(pattern({1, 1, 5, 3}), {.size = {2}, .mode = Mode::kArea}),
                {1, 1, 2, 2}, {0.833333, -0.166667, 2.5, 2.83333});
  expect_values(interpolate(pattern({1, 1, 3, 2, 2}), {.size = {2, 1, 2}, .mode = Mode::kArea}),
                {1, 1, 2, 1, 2}, {-1.25, 1.25, 2.5, 3});
}

TEST(Interpolate, keeps_dtypes_and_layouts) {
  manual_seed(0);
  const Tensor x = randn({2, 3, 5, 4});
  const InterpolateOptions options{.size = {7, 9}, .mode = Mode::kBilinear};
  const Tensor want = interpolate(x, options);
  const Tensor last = interpolate(x.contiguous(MemoryFormat::kChannelsLast), options);
  EXPECT_TRUE(allclose(last, want, 1e-6, 1e-6));
  EXPECT_TRUE(last.is_contiguous(MemoryFormat::kChannelsLast));
  EXPECT_TRUE(allclose(interpolate(x.to(DType::kF64), options).to(DType::kF32), want, 1e-5, 1e-5));
  const Tensor half = x.to(DType::kBF16);
  EXPECT_TRUE(equal(interpolate(half, options),
                    interpolate(half.to(DType::kF32), options).to(DType::kBF16)));
}

TEST(Interpolate, devices_agree) {
  manual_seed(2);
  const Tensor x = randn({2, 3, 5, 4}), cotangent = randn({2, 3, 7, 8});
  for (const Device device : available_devices()) {
    for (const Mode mode : {Mode::kNearest, Mode::kBilinear, Mode::kBicubic, Mode::kArea}) {
      const auto run = [&](Device where) {
        Tensor in = x.to(where).clone().set_requires_grad();
        const Tensor y = interpolate(in, {.size = {7, 8}, .mode = mode});
        y.backward(cotangent.to(where));
        return std::vector<Tensor>{y.detach().to(kCPU), in.grad().to(kCPU)};
      };
      const std::vector<Tensor> want = run(kCPU), got = run(device);
      EXPECT_TRUE(allclose(got[0], want[0], 1e-5, 1e-5)) << device;
      EXPECT_TRUE(allclose(got[1], want[1], 1e-5, 1e-5)) << device;
    }
  }
}

TEST(Interpolate, an_empty_batch_stays_one) {
  for (const Mode mode : {Mode::kNearest, Mode::kBilinear, Mode::kBicubic}) {
    Tensor x = zeros({0, 3, 4, 5}).set_requires_grad();
    const Tensor y = interpolate(x, {.scale_factor = {2, 1.5}, .mode = mode});
    EXPECT_EQ(y.sizes(), (Shape{0, 3, 8, 7}));
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

TEST(Interpolate, gradients_of_first_and_second_order_are_right) {
  manual_seed(1);
  const auto check = [](const Shape& sizes, const InterpolateOptions& options) {
    Tensor x = randn(sizes, {.dtype = DType::kF64}).set_requires_grad();
    const auto f = [&](const std::vector<Tensor>& in) {
      return interpolate(square(in[0]), options);
    };
    EXPECT_TRUE(gradcheck(f, {x}));
    EXPECT_TRUE(gradgradcheck(f, {x}));
  };
  check({2, 1, 3}, {.scale_factor = 2});
  check({1, 2, 3, 2}, {.scale_factor = {2, 1.5}});
  check({1, 2, 3, 4}, {.size = {2, 5}, .mode = Mode::kBilinear});
  check({1, 1, 3, 4}, {.scale_factor = 1.7, .mode = Mode::kBilinear, .align_corners = true});
  check({1, 1, 2, 3, 2}, {.size = {3, 2, 3}, .mode = Mode::kTrilinear});
  check({1, 1, 3, 2}, {.size = {4}, .mode = Mode::kBicubic});
}

TEST(Interpolate, errors_name_what_does_not_go_together) {
  const Tensor x = ones({1, 2, 3, 4});
  EXPECT_THROWS_WITH(interpolate(ones({3, 4}), {.size = {2}}), ShapeError, "got x=[3, 4]");
  EXPECT_THROWS_WITH(interpolate(x, {.size = {2}, .mode = Mode::kLinear}), ShapeError,
                     "with linear, bilinear or bicubic, and trilinear in this order");
  EXPECT_THROWS_WITH(interpolate(x, {}), ValueError, "either size or scale_factor; got neither");
  EXPECT_THROWS_WITH(interpolate(x, {.size = {2}, .scale_factor = 2}), ValueError, "got both");
  EXPECT_THROWS_WITH(interpolate(x, {.size = {2, 2, 2}}), ValueError, "[N, C]; got 3");
  EXPECT_THROWS_WITH(interpolate(x, {.scale_factor = -1}), ValueError, "must be positive; got -1");
  EXPECT_THROWS_WITH(interpolate(x, {.scale_factor = 0.1}), ShapeError, "and 0 for dimension 2");
  EXPECT_THROWS_WITH(interpolate(ones({1, 2, 0}), {.size = {2}}), ShapeError, "must be positive");
  EXPECT_THROWS_WITH(interpolate(x, {.size = {2}, .align_corners = true}), ValueError,
                     "align_corners is for linear");
  EXPECT_THROWS_WITH(interpolate(x.to(DType::kI64), {.size = {2}, .mode = Mode::kBilinear}),
                     DTypeError, "x must be floating");
  EXPECT_THROWS_WITH(interpolate(Tensor(), {.size = {2}}), Error, "interpolate");
}

TEST(PixelShuffle, turns_channels_into_places_and_back) {
  const Tensor x = pattern({1, 8, 1, 2});
  const Tensor y = pixel_shuffle(x, 2);
  expect_values(y, {1, 2, 2, 4}, {-4, -3, 0, 0, -4, 6, -2, 7, 1, 7, 1, 6, -2, 0, -4, -3});
  EXPECT_TRUE(equal(pixel_unshuffle(y, 2), x));
  EXPECT_EQ(pixel_shuffle(ones({2, 3, 18, 4, 5}), 3).sizes(), (Shape{2, 3, 2, 12, 15}));
  EXPECT_EQ(pixel_shuffle(ones({0, 4, 3, 3}), 2).sizes(), (Shape{0, 1, 6, 6}));
  Tensor in = randn({2, 4, 2, 3}, {.dtype = DType::kF64}).set_requires_grad();
  EXPECT_TRUE(
      gradcheck([](const std::vector<Tensor>& t) { return square(pixel_shuffle(t[0], 2)); }, {in}));
  EXPECT_THROWS_WITH(pixel_shuffle(ones({1, 6, 2, 2}), 2), ShapeError, "got x=[1, 6, 2, 2]");
  EXPECT_THROWS_WITH(pixel_shuffle(x, 0), ValueError, "r must be from 1 to 65536; got 0");
  EXPECT_THROWS_WITH(pixel_unshuffle(x, 2), ShapeError, "[..., C, H r, W r]");
  EXPECT_THROWS_WITH(pixel_shuffle(x, int64_t{1} << 32), ValueError, "got 4294967296");
  EXPECT_THROWS_WITH(pixel_unshuffle(x, -1), ValueError, "r must be from 1 to 65536; got -1");
}

}  // namespace
}  // namespace tarn
