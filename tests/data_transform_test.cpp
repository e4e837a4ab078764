// data_transform_test.cpp - what each augmentation step does, and that only (seed, epoch, index)
// decides it.
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/data/transform.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::data {
namespace {

Image counting(int64_t h, int64_t w, int64_t c = 1) {  // 1, 2, 3, ...
  Image image(h, w, c);
  for (size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<uint8_t>(i + 1);
  return image;
}

using Bytes = std::vector<uint8_t>;

TEST(RngTest, is_uniform_and_a_function_of_seed_epoch_and_index) {
  Rng a(1, 2, 3), b(1, 2, 3);
  EXPECT_EQ(a.next(), b.next());
  std::set<uint32_t> first;
  for (int i = 0; i < 8; ++i) first.insert(Rng(i & 1, i >> 1 & 1, i >> 2).next());
  EXPECT_EQ(first.size(), 8u);
  Rng rng(7, 0, 0);
  double sum = 0;
  std::vector<int> counts(5);
  for (int i = 0; i < 10000; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
    ++counts[static_cast<size_t>(rng.below(5))];
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);            // 5 sigma = 5 / sqrt(12 * 10000)
  for (int c : counts) EXPECT_NEAR(c, 2000, 200);  // 5 sigma = 5 * sqrt(10000 * .2 * .8)
}

TEST(TransformTest, center_crop_takes_the_middle_or_pads) {
  Rng rng(0, 0, 0);
  EXPECT_EQ(center_crop(2)(counting(4, 4), rng).pixels, (Bytes{6, 7, 10, 11}));
  EXPECT_EQ(center_crop(1)(counting(2, 2), rng).pixels, (Bytes{1}));  // round(0.5) = 0
  EXPECT_EQ(center_crop(4)(counting(2, 2), rng).pixels,
            (Bytes{0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 0}));
  EXPECT_EQ(center_crop(2)(counting(2, 4, 3), rng).channels, 3);
}

TEST(TransformTest, random_crop_reaches_every_window_of_the_padded_picture) {
  std::set<std::string> seen;
  for (int i = 0; i < 300; ++i) {
    Rng rng(0, 0, i);
    const Image out = random_crop(2, 1)(counting(2, 2), rng);
    ASSERT_EQ(out.height, 2);
    seen.insert(std::string(out.pixels.begin(), out.pixels.end()));
  }
  EXPECT_EQ(seen.size(), 9u);  // 3 x 3 corners
  EXPECT_TRUE(seen.count({0, 0, 0, 1}));
  EXPECT_TRUE(seen.count({4, 0, 0, 0}));
  EXPECT_TRUE(seen.count({1, 2, 3, 4}));
  Rng rng(0, 0, 0);
  EXPECT_MESSAGE(ValueError, random_crop(5, 1)(counting(2, 2), rng), "smaller than 5x5");
  EXPECT_MESSAGE(ValueError, random_crop(5, -1), "padding must not be negative");
  EXPECT_MESSAGE(ValueError, random_crop(0), "size must be positive");
}

TEST(TransformTest, flip_mirrors_whole_pixels_half_of_the_time) {
  int flips = 0;
  for (int i = 0; i < 1000; ++i) {
    Rng rng(0, 0, i);
    const Image out = random_horizontal_flip()(counting(1, 3, 2), rng);
    if (out.pixels[0] == 5) {
      ++flips;
      EXPECT_EQ(out.pixels, (Bytes{5, 6, 3, 4, 1, 2}));
    }
  }
  EXPECT_NEAR(flips, 500, 80);  // 5 sigma
  EXPECT_MESSAGE(ValueError, random_horizontal_flip(1.5), "must be in [0, 1]");
}

TEST(TransformTest, resize_shorter_keeps_the_aspect_ratio) {
  Rng rng(0, 0, 0);
  const Image tall = resize_shorter(4)(counting(15, 8), rng);
  EXPECT_EQ(tall.width, 4);
  EXPECT_EQ(tall.height, 7);  // 4 * 15 / 8 rounded down
  const Image wide = resize_shorter(4)(counting(2, 6), rng);
  EXPECT_EQ(wide.width, 12);
  EXPECT_EQ(wide.height, 4);
  EXPECT_MESSAGE(FileError, resize_shorter(256)(counting(1, 60000), rng),
                 "a picture of 1x60000 whose shorter side is to be 256 would have 256x15360000");
}

TEST(TransformTest, random_resized_crop_gives_the_size_asked_for) {
  for (int i = 0; i < 50; ++i) {
    Rng rng(0, 0, i);
    const Image out = random_resized_crop(5)(counting(9, 40), rng);
    EXPECT_EQ(out.height, 5);
    EXPECT_EQ(out.width, 5);
  }
  // A picture far too narrow for any allowed aspect ratio falls back to its middle.
  Rng rng(0, 0, 0);
  EXPECT_EQ(random_resized_crop(2)(counting(100, 1), rng).pixels.size(), 4u);
  EXPECT_MESSAGE(ValueError, random_resized_crop(5, {.min_area = 0}), "0 < min_area");
}

TEST(TransformTest, write_normalises_into_either_layout) {
  ImagePipeline p{.steps = {}, .mean = {0.5f, 0.25f}, .std = {0.5f, 0.25f}, .erasing = {}};
  Image image(1, 2, 2);
  image.pixels = {0, 255, 51, 102};
  Rng rng(0, 0, 0);
  std::vector<float> out(4);
  p.write(image, rng, false, out.data());
  const float a = (0 - 0.5f) / 0.5f, b = (0.2f - 0.5f) / 0.5f;
  const float c = (1 - 0.25f) / 0.25f, d = (0.4f - 0.25f) / 0.25f;
  EXPECT_EQ(out, (std::vector<float>{a, b, c, d}));
  p.write(image, rng, true, out.data());
  EXPECT_EQ(out, (std::vector<float>{a, c, b, d}));
  p.mean = {1, 2, 3};
  EXPECT_MESSAGE(ValueError, p.write(image, rng, true, out.data()), "mean has 3");
}

TEST(TransformTest, erasing_zeroes_one_rectangle_of_all_channels) {
  ImagePipeline p;
  p.erasing.probability = 1;
  Image image(8, 8, 2);
  std::fill(image.pixels.begin(), image.pixels.end(), 255);
  int erased_total = 0;
  for (int i = 0; i < 40; ++i) {
    Rng rng(0, 0, i);
    std::vector<float> out(128);
    p.write(image, rng, false, out.data());
    int64_t top = 8, left = 8, bottom = -1, right = -1, erased = 0;
    for (int64_t at = 0; at < 64; ++at) {
      EXPECT_EQ(out[at], out[at + 64]);
      if (out[at] != 0) continue;
      ++erased;
      top = std::min(top, at / 8);
      bottom = std::max(bottom, at / 8);
      left = std::min(left, at % 8);
      right = std::max(right, at % 8);
    }
    EXPECT_EQ(erased, erased ? (bottom - top + 1) * (right - left + 1) : 0);
    erased_total += static_cast<int>(erased);
  }
  EXPECT_NEAR(erased_total / 40.0 / 64, 0.17, 0.06);  // mean share of U(0.02, 0.33)
}

}  // namespace
}  // namespace tarn::data
