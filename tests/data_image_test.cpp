// data_image_test.cpp - decoding and resizing; the expected pixels are Pillow's.
#include <gtest/gtest.h>

#include "tarn/core/error.h"
#include "tarn/data/image.h"
#include "tarn/tests/temp_folder.h"
#include "tarn/tests/tiny_images.h"

namespace tarn::data {
namespace {

using test::kTinyJpeg;
using test::kTinyPng;

Image pattern() {  // [7, 5, 3], pixel i = 37 i mod 256
  Image image(7, 5, 3);
  for (size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<uint8_t>(i * 37);
  return image;
}

TEST(ImageTest, decodes_png_and_jpeg_to_interleaved_rgb) {
  const Image png = decode_image(kTinyPng, "tiny.png");
  EXPECT_EQ(png.height, 2);
  EXPECT_EQ(png.width, 2);
  EXPECT_EQ(png.pixels, (std::vector<uint8_t>{255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 8, 7}));
  const Image jpeg = decode_image(kTinyJpeg, "tiny.jpg");
  EXPECT_EQ(jpeg.channels, 3);
  EXPECT_EQ(jpeg.pixels, std::vector<uint8_t>(8 * 8 * 3, 128));
  EXPECT_EQ(decode_image(kTinyJpeg, "tiny.jpg", 1).pixels, std::vector<uint8_t>(64, 128));
  const Image ppm = decode_image("P5\n2 1\n255\nab", "x.pgm");
  EXPECT_EQ(ppm.pixels, (std::vector<uint8_t>{'a', 'a', 'a', 'b', 'b', 'b'}));
}

TEST(ImageTest, names_the_file_that_does_not_decode) {
  EXPECT_MESSAGE(FileError, decode_image("no picture", "a/b.jpg"),
                 "decode_image: a/b.jpg: not a JPEG, PNG, BMP, PGM or PPM");
  EXPECT_MESSAGE(FileError, decode_image("", "a/b.jpg"), "a/b.jpg: the file is empty");
  EXPECT_MESSAGE(ValueError, decode_image(kTinyPng, "x", 2), "channels must be 1 or 3");
  const test::TempFolder folder;
  EXPECT_MESSAGE(FileError, read_image(folder / "none.png"), "none.png: No such file");
}

TEST(ImageTest, refuses_a_jpeg_or_png_cut_at_any_length) {
  for (const std::string& whole : {kTinyJpeg, kTinyPng}) {
    // A PNG without its IEND chunk (12 bytes) still holds every pixel, and decoders accept it.
    const size_t need = whole == kTinyPng ? whole.size() - 16 : whole.size();
    for (size_t n = 0; n < need; ++n) {
      EXPECT_NE(test::message_of<FileError>([&] { decode_image(whole.substr(0, n), "cut"); }), "")
          << n << " of " << whole.size();
    }
  }
}

TEST(ImageTest, resizes_as_pillow_does) {
  EXPECT_EQ(resize_image(pattern(), 4, 3).pixels,
            (std::vector<uint8_t>{71,  108, 139, 120, 83,  117, 156, 130, 91,  137, 144, 123,
                                  112, 133, 125, 113, 120, 127, 137, 144, 151, 139, 131, 152,
                                  141, 120, 127, 97,  134, 108, 147, 107, 144, 125, 156, 117}));
  EXPECT_EQ(resize_image(pattern(), 1, 2).pixels,
            (std::vector<uint8_t>{122, 125, 132, 132, 126, 124}));
  EXPECT_EQ(resize_image(pattern(), 3, 5).pixels,
            (std::vector<uint8_t>{37,  74,  111, 148, 185, 167, 94,  40,  77, 114, 151, 188,
                                  170, 97,  43,  129, 166, 188, 165, 96,  73, 95,  132, 169,
                                  191, 168, 99,  76,  98,  135, 130, 167, 94, 76,  113, 150,
                                  187, 133, 170, 97,  79,  116, 153, 190, 136}));
  const Image larger = resize_image(pattern(), 11, 9);
  EXPECT_EQ(std::vector<uint8_t>(larger.pixels.begin() + 27, larger.pixels.begin() + 39),
            (std::vector<uint8_t>{20, 57, 94, 57, 94, 131, 119, 156, 193, 128, 104, 141}));
  EXPECT_MESSAGE(ValueError, resize_image(pattern(), 0, 3), "sizes must be positive");
}

}  // namespace
}  // namespace tarn::data
