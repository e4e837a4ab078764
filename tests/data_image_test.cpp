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

std::string bytes_of(int64_t value, int count) {  // the lowest first
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// 24 bits, uncompressed; a negative height: rows from the top.
std::string bmp(int64_t width, int64_t height, const std::string& rows, int64_t offset = 54,
                int64_t bits = 24) {
  return "BM" + bytes_of(54 + static_cast<int64_t>(rows.size()), 4) + bytes_of(0, 4) +
         bytes_of(offset, 4) + bytes_of(40, 4) + bytes_of(width, 4) + bytes_of(height, 4) +
         bytes_of(1, 2) + bytes_of(bits, 2) + std::string(24, '\0') + rows;
}

TEST(ImageTest, refuses_a_pgm_ppm_or_bmp_cut_at_any_length) {
  // Rows of 6 bytes and 2 of padding; blue comes first.
  const std::string rows = std::string("123456") + '\0' + '\0' + "abcdef";
  for (const std::string& whole :
       {std::string("P5 2 2 255\nabcd"), std::string("P6\n# a 9 9 9\n2 #b\r1\n255\nabcdef"),
        bmp(2, 2, rows), bmp(2, -2, rows)}) {
    EXPECT_GT(decode_image(whole, "whole").pixels.size(), 5u);
    for (size_t n = 0; n < whole.size(); ++n) {
      EXPECT_NE(test::message_of<FileError>([&] { decode_image(whole.substr(0, n), "cut"); }), "")
          << n << " of " << whole.size();
    }
  }
  EXPECT_MESSAGE(FileError, decode_image("P6 2 2 255\nabc", "x.ppm"),
                 "x.ppm: truncated: its pixels need 12 bytes, there are 3");
  EXPECT_MESSAGE(FileError, decode_image(bmp(2, 2, "abc"), "x.bmp"),
                 "x.bmp: truncated: its pixels end at byte 68, the file at 57");
  const Image down = decode_image(bmp(2, -2, rows), "x.bmp");
  EXPECT_EQ(std::string(down.pixels.begin(), down.pixels.end()), "321654cbafed");
}

TEST(ImageTest, white_is_255_whatever_the_largest_value) {
  EXPECT_EQ(decode_image(std::string("P5 4 1 3\n\0\1\2\3", 13), "x.pgm", 1).pixels,
            (std::vector<uint8_t>{0, 85, 170, 255}));
}

TEST(ImageTest, pixels_of_a_bmp_are_in_its_palette) {
  const std::string palette = bytes_of(0x332211, 4) + bytes_of(0x665544, 4);
  const Image image = decode_image(bmp(2, 1, palette + bytes_of(0x0001, 4), 62, 8), "x.bmp");
  EXPECT_EQ(image.pixels, (std::vector<uint8_t>{0x66, 0x55, 0x44, 0x33, 0x22, 0x11}));
  EXPECT_MESSAGE(FileError, decode_image(bmp(2, 1, palette + bytes_of(0x0201, 4), 62, 8), "x.bmp"),
                 "x.bmp: a pixel has colour 2 of a palette of 2");
  EXPECT_MESSAGE(FileError, decode_image(bmp(2, 1, palette + bytes_of(0x20, 4), 62, 4), "x.bmp"),
                 "a pixel has colour 2 of a palette of 2");
}

TEST(ImageTest, refuses_sizes_and_depths_that_it_cannot_read) {
  EXPECT_MESSAGE(FileError, decode_image("P5 1 1 65535\nab", "x.pgm"),
                 "x.pgm: its largest value must be 1 to 255, one byte per channel");
  EXPECT_MESSAGE(FileError, decode_image("P5 1 1 0\na", "x"), "its largest value must be");
  EXPECT_MESSAGE(FileError, decode_image("P5 0 1 255\na", "x"), "its header must give width");
  EXPECT_MESSAGE(FileError, decode_image("P5 1 255\nabcdef", "x"), "its header must give width");
  EXPECT_MESSAGE(FileError, decode_image("P6 99999999999999999999 1 255\na", "x"), "pixels wide");
  EXPECT_MESSAGE(FileError, decode_image("P6 16777216 16777216 255\na", "x"), "truncated");
  for (const int64_t odd : {int64_t{0}, -(int64_t{1} << 31), int64_t{1} << 24, int64_t{1} << 30}) {
    EXPECT_NE(test::message_of<FileError>([&] { decode_image(bmp(odd, 1, "abcd"), "x"); }), "");
    EXPECT_NE(test::message_of<FileError>([&] { decode_image(bmp(1, odd, "abcd"), "x"); }), "");
  }
  EXPECT_MESSAGE(FileError, decode_image(bmp(1, 1, "abcd", 10), "x.bmp"), "within its header");
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
