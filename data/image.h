// image.h - a decoded picture, reading it from a file, and resizing it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tarn::data {

/// Eight bits per channel, rows from the top, channels interleaved (HWC).
struct Image {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> pixels;

  Image() = default;
  Image(int64_t h, int64_t w, int64_t c)
      : height(h), width(w), channels(c), pixels(static_cast<size_t>(h * w * c)) {}
  uint8_t* row(int64_t y) { return pixels.data() + y * width * channels; }
  const uint8_t* row(int64_t y) const { return pixels.data() + y * width * channels; }
};

/// Decodes JPEG, PNG, BMP, PGM or PPM into RGB (channels = 3) or grey (1). Throws FileError
/// "decode_image: PATH: reason"; a picture that breaks off is an error, not grey pixels, and so is
/// a PGM or PPM of 16 bits.
Image decode_image(std::string_view bytes, const std::string& path, int channels = 3);
/// Reads and decodes a file. Throws FileError naming it.
Image read_image(const std::string& path, int channels = 3);

/// Bilinear with antialiasing: a triangle filter as wide as the shrinking factor, rows first, then
/// columns, in 22-bit fixed point. Equal to Pillow's Image.resize(BILINEAR), bit by bit.
Image resize_image(const Image& image, int64_t height, int64_t width);

}  // namespace tarn::data
