// transform.cpp - crops, flips, normalisation, erasing.
#include "tarn/data/transform.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "tarn/core/error.h"

namespace tarn::data {
namespace {

/// The window [height, width] whose upper left corner is (top, left); zero outside the picture.
Image window(const Image& image, int64_t top, int64_t left, int64_t height, int64_t width) {
  Image out(height, width, image.channels);
  const int64_t x0 = std::max<int64_t>(left, 0), x1 = std::min(left + width, image.width);
  const int64_t y0 = std::max<int64_t>(top, 0), y1 = std::min(top + height, image.height);
  for (int64_t y = y0; x0 < x1 && y < y1; ++y) {
    std::copy_n(image.row(y) + x0 * image.channels, (x1 - x0) * image.channels,
                out.row(y - top) + (x0 - left) * image.channels);
  }
  return out;
}

struct Box {
  int64_t top, left, height, width;
};

/// A random rectangle of the given share and aspect ratio (log-uniform); none after ten misses.
std::optional<Box> random_box(int64_t height, int64_t width, double min_area, double max_area,
                              double min_aspect, double max_aspect, Rng& rng) {
  constexpr int kAttempts = 10;
  for (int i = 0; i < kAttempts; ++i) {
    const double area = static_cast<double>(height * width) * rng.uniform(min_area, max_area);
    const double aspect = std::exp(rng.uniform(std::log(min_aspect), std::log(max_aspect)));
    const int64_t w = std::llround(std::sqrt(area * aspect));
    const int64_t h = std::llround(std::sqrt(area / aspect));
    if (w <= 0 || h <= 0 || w > width || h > height) continue;
    const int64_t top = rng.below(height - h + 1);
    return Box{top, rng.below(width - w + 1), h, w};
  }
  return std::nullopt;
}

/// The largest middle part whose aspect ratio is allowed.
Box central_box(int64_t height, int64_t width, double min_aspect, double max_aspect) {
  const double aspect = static_cast<double>(width) / static_cast<double>(height);
  int64_t h = height, w = width;
  if (aspect < min_aspect) h = std::llround(static_cast<double>(width) / min_aspect);
  if (aspect > max_aspect) w = std::llround(static_cast<double>(height) * max_aspect);
  return {(height - h) / 2, (width - w) / 2, h, w};
}

void check_size(const char* step, int64_t size) {
  TARN_CHECK_AS(ValueError, size > 0, step, ": size must be positive; got ", size);
}

void check_probability(const char* step, double p) {
  TARN_CHECK_AS(ValueError, p >= 0 && p <= 1, step, ": probability must be in [0, 1]; got ", p);
}

// A picture that is a line would become one of gigabytes.
constexpr int64_t kMostPixels = int64_t{1} << 27;

/// Half to even, as Python's round().
int64_t round_half_even(double x) {
  return static_cast<int64_t>(std::nearbyint(x));
}

}  // namespace

ImageStep resize_shorter(int64_t size) {
  check_size("resize_shorter", size);
  return [size](Image image, Rng&) {
    const int64_t shorter = std::min(image.height, image.width);
    const auto scaled = [&](int64_t side) {
      return side == shorter ? size : size * side / shorter;
    };
    const int64_t height = scaled(image.height), width = scaled(image.width);
    TARN_CHECK_AS(FileError, height <= kMostPixels / width, "a picture of ", image.height, "x",
                  image.width, " whose shorter side is to be ", size, " would have ", height, "x",
                  width, " pixels, which is too much");
    return resize_image(image, height, width);
  };
}

ImageStep center_crop(int64_t size) {
  check_size("center_crop", size);
  return [size](Image image, Rng&) {
    if (image.height == size && image.width == size) return image;
    const auto start = [&](int64_t side) {
      // torchvision pads the smaller side by (size - side) / 2 first, rounded down.
      if (side < size) return -((size - side) / 2);
      return round_half_even(static_cast<double>(side - size) / 2);
    };
    return window(image, start(image.height), start(image.width), size, size);
  };
}

ImageStep random_crop(int64_t size, int64_t padding) {
  check_size("random_crop", size);
  TARN_CHECK_AS(ValueError, padding >= 0, "random_crop: padding must not be negative; got ",
                padding);
  return [size, padding](Image image, Rng& rng) {
    const int64_t rows = image.height + 2 * padding - size, cols = image.width + 2 * padding - size;
    TARN_CHECK_AS(ValueError, rows >= 0 && cols >= 0, "random_crop: a picture of ", image.height,
                  "x", image.width, " padded by ", padding, " is smaller than ", size, "x", size);
    const int64_t top = rng.below(rows + 1) - padding;
    return window(image, top, rng.below(cols + 1) - padding, size, size);
  };
}

ImageStep random_horizontal_flip(double probability) {
  check_probability("random_horizontal_flip", probability);
  return [probability](Image image, Rng& rng) {
    if (!rng.chance(probability)) return image;
    const int64_t c = image.channels;
    for (int64_t y = 0; y < image.height; ++y) {
      uint8_t* row = image.row(y);
      for (int64_t a = 0, b = image.width - 1; a < b; ++a, --b) {
        std::swap_ranges(row + a * c, row + (a + 1) * c, row + b * c);
      }
    }
    return image;
  };
}

ImageStep random_resized_crop(int64_t size, const ResizedCropOptions& o) {
  check_size("random_resized_crop", size);
  TARN_CHECK_AS(ValueError,
                o.min_area > 0 && o.min_area <= o.max_area && o.max_area <= 1 && o.min_aspect > 0 &&
                    o.min_aspect <= o.max_aspect,
                "random_resized_crop: needs 0 < min_area <= max_area <= 1 and 0 < min_aspect <= "
                "max_aspect; got area ",
                o.min_area, "..", o.max_area, ", aspect ", o.min_aspect, "..", o.max_aspect);
  return [size, o](Image image, Rng& rng) {
    const Box box =
        random_box(image.height, image.width, o.min_area, o.max_area, o.min_aspect, o.max_aspect,
                   rng)
            .value_or(central_box(image.height, image.width, o.min_aspect, o.max_aspect));
    return resize_image(window(image, box.top, box.left, box.height, box.width), size, size);
  };
}

Image ImagePipeline::run_steps(Image image, Rng& rng) const {
  for (const ImageStep& step : steps) image = step(std::move(image), rng);
  return image;
}

void ImagePipeline::write(const Image& image, Rng& rng, bool channels_last, float* out) const {
  const int64_t channels = image.channels, area = image.height * image.width;
  const auto fits = [&](const std::vector<float>& v) {
    return v.size() <= 1 || static_cast<int64_t>(v.size()) == channels;
  };
  TARN_CHECK_AS(ValueError, fits(mean) && fits(std), "ImagePipeline: mean has ", mean.size(),
                " and std ", std.size(), " values; the picture has ", channels, " channels");
  const auto pick = [](const std::vector<float>& v, int64_t c, float otherwise) {
    return v.empty() ? otherwise : v.size() == 1 ? v[0] : v[static_cast<size_t>(c)];
  };
  const int64_t step = channels_last ? channels : 1;
  for (int64_t c = 0; c < channels; ++c) {
    std::array<float, 256> table;  // a byte has few values: divide each once
    const float m = pick(mean, c, 0), s = pick(std, c, 1);
    for (int v = 0; v < 256; ++v) {
      table[static_cast<size_t>(v)] = (static_cast<float>(v) / 255.0f - m) / s;
    }
    const uint8_t* from = image.pixels.data() + c;
    float* to = out + (channels_last ? c : c * area);
    for (int64_t i = 0; i < area; ++i) to[i * step] = table[from[i * channels]];
  }
  if (erasing.probability <= 0 || !rng.chance(erasing.probability)) return;
  const auto box = random_box(image.height, image.width, erasing.min_area, erasing.max_area,
                              erasing.min_aspect, erasing.max_aspect, rng);
  if (!box) return;
  for (int64_t c = 0; c < channels; ++c) {
    float* plane = out + (channels_last ? c : c * area);
    for (int64_t y = box->top; y < box->top + box->height; ++y) {
      for (int64_t x = box->left; x < box->left + box->width; ++x) {
        plane[(y * image.width + x) * step] = 0;
      }
    }
  }
}

}  // namespace tarn::data
