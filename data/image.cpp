// image.cpp - decoding through stb_image, and Pillow's resampling.
#include "tarn/data/image.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include <stb/stb_image.h>

#include "tarn/core/error.h"
#include "tarn/core/file.h"

namespace tarn::data {
namespace {

// stb_image calls a picture that breaks off a success: it fills the rest of a JPEG with grey, of a
// BMP with black, of a PGM or PPM with what is in memory. Hence the looks at the files before.

/// True unless `bytes` is a JPEG that breaks off before its end marker.
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

constexpr int64_t kMostSide = int64_t{1} << 24;  // pixels that stb_image takes in a row
constexpr const char* kTooLarge = "more than 16777216 pixels wide or high";

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The next number in the head of a PGM or PPM, after spaces and comments, or -1; one too large is
/// cut. Moves `at` behind it.
int64_t next_number(std::string_view bytes, size_t& at) {
  while (at < bytes.size() && (is_space(bytes[at]) || bytes[at] == '#')) {
    const bool comment = bytes[at] == '#';  // to the end of its line
    at = comment ? std::min(bytes.find_first_of("\r\n", at), bytes.size()) : at + 1;
  }
  if (at == bytes.size() || !is_digit(bytes[at])) return -1;
  int64_t value = 0;
  for (; at < bytes.size() && is_digit(bytes[at]); ++at) {
    value = std::min(value * 10 + (bytes[at] - '0'), kMostSide + 1);
  }
  return value;
}

struct PnmHead {
  int64_t width, height, white;  // -1 where there is no number
  size_t end;
};
PnmHead pnm_head(std::string_view bytes) {
  PnmHead h{};
  h.end = 2;
  h.width = next_number(bytes, h.end);
  h.height = next_number(bytes, h.end);
  h.white = next_number(bytes, h.end);
  return h;
}
bool is_pnm(std::string_view bytes) {
  return bytes.starts_with("P5") || bytes.starts_with("P6");
}

/// What is wrong with a PGM or PPM; "" for others and if nothing is. Of two bytes per channel,
/// stb_image takes the lower.
std::string pnm_fault(std::string_view bytes) {
  if (!is_pnm(bytes)) return "";
  const auto [width, height, white, at] = pnm_head(bytes);
  if (at == bytes.size()) return "truncated: it ends in its header";
  if (width < 1 || height < 1 || white < 0 || !is_space(bytes[at])) {
    return "its header must give width, height and the largest value, and then a space";
  }
  if (width > kMostSide || height > kMostSide) return kTooLarge;
  if (white < 1 || white > 255) {
    return "its largest value must be 1 to 255, one byte per channel; convert it to 8 bits";
  }
  const int64_t need = width * height * (bytes[1] == '6' ? 3 : 1);
  const auto have = static_cast<int64_t>(bytes.size() - at - 1);
  if (have >= need) return "";
  return "truncated: its pixels need " + std::to_string(need) + " bytes, there are " +
         std::to_string(have);
}

/// PGM and PPM: brings their white to 255, which stb_image does not.
void scale_white(std::string_view bytes, std::vector<uint8_t>& pixels) {
  if (!is_pnm(bytes)) return;
  const int64_t white = pnm_head(bytes).white;
  if (white == 255) return;
  for (uint8_t& p : pixels) {
    p = static_cast<uint8_t>((std::min<int64_t>(p, white) * 255 + white / 2) / white);
  }
}

/// A number of `count` bytes, the lowest first; those behind the end are 0.
int64_t number_at(std::string_view bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count && at + i < bytes.size(); ++i) {
    value |= uint64_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  }
  return static_cast<int64_t>(value);
}

/// The largest index into the palette of a BMP's pixels, of `bits` each, in rows from `at` on.
int64_t largest_index(std::string_view bytes, int64_t at, int64_t width, int64_t height,
                      int64_t row, int64_t bits) {
  int64_t largest = 0;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const auto byte =
          static_cast<uint8_t>(bytes[static_cast<size_t>(at + y * row + x * bits / 8)]);
      const int64_t shift = 8 - bits - x * bits % 8;  // the first pixel is in the highest bits
      largest = std::max<int64_t>(largest, (byte >> shift) & ((1 << bits) - 1));
    }
  }
  return largest;
}

/// What is wrong with a BMP; "" for others and if nothing is. What stb_image refuses by itself, it
/// may say: compressed ones, other headers.
std::string bmp_fault(std::string_view bytes) {
  if (!bytes.starts_with("BM")) return "";
  const int64_t offset = number_at(bytes, 10, 4), head = number_at(bytes, 14, 4);
  const bool short_head = head == 12;  // OS/2's, with sizes of 16 bits
  const int64_t width = number_at(bytes, 18, short_head ? 2 : 4);
  const int64_t height =  // below 0 where the rows go from the top
      short_head ? number_at(bytes, 20, 2)
                 : std::abs(int64_t{static_cast<int32_t>(number_at(bytes, 22, 4))});
  const int64_t bits = number_at(bytes, short_head ? 24 : 28, 2);
  const int64_t compression = short_head ? 0 : number_at(bytes, 30, 4);
  if (width > kMostSide || height > kMostSide) return kTooLarge;
  if (width < 1 || height < 1) return "";
  if (bits > 32 || (compression != 0 && compression != 3)) return "";
  const int64_t row = (width * bits + 31) / 32 * 4;
  // Behind the last row's pixels, some leave the padding out.
  const int64_t end = offset + (height - 1) * row + (width * bits + 7) / 8;
  const auto have = static_cast<int64_t>(bytes.size());
  if (end > have) {
    return "truncated: its pixels end at byte " + std::to_string(end) + ", the file at " +
           std::to_string(have);
  }
  if (offset < 14 + head) return "its pixels begin within its header";
  if (bits != 1 && bits != 4 && bits != 8) return "";
  if (short_head) return "a BMP of OS/2 with a palette; convert it to another format";
  const int64_t colours = (offset - 14 - head) / 4;
  const int64_t index = largest_index(bytes, offset, width, height, row, bits);
  if (index < colours) return "";
  return "a pixel has colour " + std::to_string(index) + " of a palette of " +
         std::to_string(colours);
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
  for (const std::string& fault : {pnm_fault(bytes), bmp_fault(bytes)}) {
    TARN_CHECK_AS(FileError, fault.empty(), "decode_image: ", path, ": ", fault);
  }
  int width = 0, height = 0, stored = 0;
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(reinterpret_cast<const stbi_uc*>(bytes.data()),
                            static_cast<int>(bytes.size()), &width, &height, &stored, channels),
      stbi_image_free);
  TARN_CHECK_AS(FileError, pixels, "decode_image: ", path,
                ": not a JPEG, PNG, BMP, PGM or PPM that can be decoded (", stbi_failure_reason(),
                ")");
  TARN_CHECK_AS(FileError, width > 0 && height > 0, "decode_image: ", path,
                ": its header gives it no pixels");
  Image image(height, width, channels);
  std::copy_n(pixels.get(), image.pixels.size(), image.pixels.data());
  scale_white(bytes, image.pixels);
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
