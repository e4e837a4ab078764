// image.cpp - decoding through stb_image, and Pillow's resampling.
#include "tarn/data/image.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <stb/stb_image.h>

#include "tarn/core/error.h"
#include "tarn/core/file.h"

namespace tarn::data {
namespace {

/// True unless `bytes` is a JPEG that breaks off before its end marker: stb_image would fill the
/// rest with grey and call it a success.
bool jpeg_is_complete(std::string_view bytes) {
  const auto* p = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t n = bytes.size();
  if (n < 2 || p[0] != 0xFF || p[1] != 0xD8) return true;  // not a JPEG
  size_t at = 2;
  while (at + 1 < n) {
    if (p[at] != 0xFF) {  // inside a scan
      ++at;
      continue;
    }
    const uint8_t marker = p[at + 1];
    const bool stands_alone =
        marker == 0x00 || marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7);
    if (marker == 0xD9) return true;
    if (marker == 0xFF) {
      at += 1;  // fill byte
    } else if (stands_alone) {
      at += 2;
    } else {
      if (at + 3 >= n) return false;
      at += 2 + (static_cast<size_t>(p[at + 2]) << 8 | p[at + 3]);
    }
  }
  return false;
}

/// For each output position: the first input it takes from, and the weights.
struct Kernel {
  int64_t taps = 0;
  std::vector<int64_t> first, count;
  std::vector<int32_t> weights;  // [output][taps], 22 fractional bits
};
constexpr int kFraction = 22;

Kernel make_kernel(int64_t in, int64_t out) {
  Kernel k;
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double support = std::max(scale, 1.0);  // the triangle's half width
  k.taps = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  k.weights.assign(static_cast<size_t>(out * k.taps), 0);
  std::vector<double> w(static_cast<size_t>(k.taps));
  for (int64_t o = 0; o < out; ++o) {
    const double center = (static_cast<double>(o) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t last = std::min(static_cast<int64_t>(center + support + 0.5), in);
    double sum = 0;
    for (int64_t i = first; i < last; ++i) {
      const double x = std::fabs((static_cast<double>(i) - center + 0.5) / support);
      sum += w[static_cast<size_t>(i - first)] = x < 1 ? 1 - x : 0;
    }
    for (int64_t i = 0; i < last - first; ++i) {
      const double share = sum != 0 ? w[static_cast<size_t>(i)] / sum : 0;
      k.weights[static_cast<size_t>(o * k.taps + i)] =
          static_cast<int32_t>(0.5 + share * (1 << kFraction));
    }
    k.first.push_back(first);
    k.count.push_back(last - first);
  }
  return k;
}

uint8_t round_pixel(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kFraction, 0, 255));
}

Image resize_width(const Image& image, int64_t width) {
  const Kernel k = make_kernel(image.width, width);
  Image out(image.height, width, image.channels);
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* from = image.row(y);
    uint8_t* to = out.row(y);
    for (int64_t x = 0; x < width; ++x) {
      const int32_t* w = &k.weights[static_cast<size_t>(x * k.taps)];
      for (int64_t c = 0; c < image.channels; ++c) {
        int32_t sum = 1 << (kFraction - 1);
        const uint8_t* pixel = from + k.first[x] * image.channels + c;
        for (int64_t i = 0; i < k.count[x]; ++i) sum += w[i] * pixel[i * image.channels];
        *to++ = round_pixel(sum);
      }
    }
  }
  return out;
}

Image resize_height(const Image& image, int64_t height) {
  const Kernel k = make_kernel(image.height, height);
  Image out(height, image.width, image.channels);
  const int64_t row = image.width * image.channels;
  std::vector<int32_t> sums(static_cast<size_t>(row));
  for (int64_t y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), 1 << (kFraction - 1));
    for (int64_t i = 0; i < k.count[y]; ++i) {
      const int32_t w = k.weights[static_cast<size_t>(y * k.taps + i)];
      const uint8_t* from = image.row(k.first[y] + i);
      for (int64_t x = 0; x < row; ++x) sums[static_cast<size_t>(x)] += w * from[x];
    }
    uint8_t* to = out.row(y);
    for (int64_t x = 0; x < row; ++x) to[x] = round_pixel(sums[static_cast<size_t>(x)]);
  }
  return out;
}

}  // namespace

Image decode_image(std::string_view bytes, const std::string& path, int channels) {
  TARN_CHECK_AS(ValueError, channels == 1 || channels == 3,
                "decode_image: channels must be 1 or 3; got ", channels);
  TARN_CHECK_AS(FileError, !bytes.empty(), "decode_image: ", path, ": the file is empty");
  TARN_CHECK_AS(FileError, bytes.size() < (size_t{1} << 31), "decode_image: ", path,
                ": larger than 2 GiB");
  TARN_CHECK_AS(FileError, jpeg_is_complete(bytes), "decode_image: ", path,
                ": truncated: the JPEG has no end marker");
  int width = 0, height = 0, stored = 0;
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(reinterpret_cast<const stbi_uc*>(bytes.data()),
                            static_cast<int>(bytes.size()), &width, &height, &stored, channels),
      stbi_image_free);
  TARN_CHECK_AS(FileError, pixels, "decode_image: ", path,
                ": not a JPEG, PNG, BMP, PGM or PPM that can be decoded (", stbi_failure_reason(),
                ")");
  Image image(height, width, channels);
  std::copy_n(pixels.get(), image.pixels.size(), image.pixels.data());
  return image;
}

Image read_image(const std::string& path, int channels) {
  return decode_image(read_file("read_image", path), path, channels);
}

Image resize_image(const Image& image, int64_t height, int64_t width) {
  TARN_CHECK_AS(ValueError, height > 0 && width > 0 && image.height > 0 && image.width > 0,
                "resize_image: sizes must be positive; got ", image.height, "x", image.width,
                " to ", height, "x", width);
  Image wide;
  const Image* source = &image;
  if (width != image.width) {
    wide = resize_width(image, width);
    source = &wide;
  }
  return height != source->height ? resize_height(*source, height) : *source;
}

}  // namespace tarn::data
