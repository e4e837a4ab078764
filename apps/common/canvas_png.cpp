// canvas_png.cpp - a canvas of pixels: anti-aliased discs and strokes, written as PNG.
//
// A stroke's coverage of a pixel follows from the distance of the pixel's centre to the nearest
// segment. All segments of one polyline go into a mask by maximum and are blended once, so joints
// and crossings of a translucent line do not darken.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include <zlib.h>

namespace {

// For stb_image_write, whose own compressor takes ten times as long. Memory from malloc, or null.
unsigned char* zlib_compress(unsigned char* data, int size, int* out_size, int quality) {
  uLongf length = compressBound(static_cast<uLong>(size));
  auto* out = static_cast<unsigned char*>(std::malloc(length));
  if (out && compress2(out, &length, data, static_cast<uLong>(size), quality) != Z_OK) {
    std::free(out);
    return nullptr;
  }
  *out_size = static_cast<int>(length);
  return out;
}

}  // namespace

#define STBIW_ZLIB_COMPRESS zlib_compress
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wunused-function"
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

#include "tarn/apps/common/canvas.h"
#include "tarn/apps/common/font.h"

namespace tarn::apps {
namespace {

double distance_to_segment(Point p, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy;
  const double t =
      length2 > 0 ? std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length2, 0.0, 1.0) : 0.0;
  return std::hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

struct Box {
  int x0, y0, x1, y1;  // pixels [x0, x1) x [y0, y1)
};

class PngCanvas : public Canvas {
 public:
  PngCanvas(double width, double height, double scale)
      : scale_(scale),
        width_(static_cast<int>(std::lround(width * scale))),
        height_(static_cast<int>(std::lround(height * scale))),
        pixels_(static_cast<size_t>(width_) * static_cast<size_t>(height_) * 3, 255),
        mask_(static_cast<size_t>(width_) * static_cast<size_t>(height_), 0.0F) {
    unclip();
  }

  void fill_rect(Point at, double width, double height, Color color) override {
    const double x0 = at.x * scale_, y0 = at.y * scale_;
    const double x1 = x0 + width * scale_, y1 = y0 + height * scale_;
    const Box box = clipped(x0, y0, x1, y1);
    for (int y = box.y0; y < box.y1; ++y) {
      const double rows = std::min(y1, y + 1.0) - std::max<double>(y0, y);
      for (int x = box.x0; x < box.x1; ++x) {
        const double columns = std::min(x1, x + 1.0) - std::max<double>(x0, x);
        blend(x, y, color, std::max(rows, 0.0) * std::max(columns, 0.0));
      }
    }
  }

  void disc(Point at, double radius, Color color) override {
    const Point same[] = {at, at};
    polyline(same, 2 * radius, color);
  }

  void polyline(std::span<const Point> points, double width, Color color) override {
    if (points.empty()) return;
    Box all{width_, height_, 0, 0};
    for (size_t i = 0; i + 1 < std::max<size_t>(points.size(), 2); ++i) {
      cover(scaled(points[i]), scaled(points[std::min(i + 1, points.size() - 1)]),
            width * scale_ / 2, all);
    }
    for (int y = all.y0; y < all.y1; ++y) {
      for (int x = all.x0; x < all.x1; ++x) {
        float& coverage = mask_[index(x, y)];
        if (coverage > 0) blend(x, y, color, coverage);
        coverage = 0;
      }
    }
  }

  void text(Point at, const std::string& text, const TextStyle& style) override {
    const double width = text_width(text, style.size);
    const double shift = style.anchor == Anchor::kStart    ? 0
                         : style.anchor == Anchor::kMiddle ? width / 2
                                                           : width;
    for (auto& stroke : text_strokes(text, style.size)) {
      for (Point& p : stroke) {
        const Point local{p.x - shift, p.y};
        p = style.upward ? Point{at.x + local.y, at.y - local.x}
                         : Point{at.x + local.x, at.y + local.y};
      }
      polyline(stroke, pen_width(style.size, style.bold), style.color);
    }
  }

  void clip(Point at, double width, double height) override {
    clip_ = {0, 0, width_, height_};
    clip_ =
        clipped(at.x * scale_, at.y * scale_, (at.x + width) * scale_, (at.y + height) * scale_);
  }

  void unclip() override { clip_ = {0, 0, width_, height_}; }

  std::string finish() override {
    std::string bytes;
    const auto append = [](void* to, void* data, int size) {
      static_cast<std::string*>(to)->append(static_cast<const char*>(data),
                                            static_cast<size_t>(size));
    };
    stbi_write_png_compression_level = 6;
    stbi_write_force_png_filter = 2;  // "up": nearly all rows are as the one above
    if (!stbi_write_png_to_func(append, &bytes, width_, height_, 3, pixels_.data(), width_ * 3)) {
      throw std::runtime_error("plot: the PNG could not be encoded");
    }
    return bytes;
  }

 private:
  Point scaled(Point p) const { return {p.x * scale_, p.y * scale_}; }
  size_t index(int x, int y) const {
    return static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x);
  }

  Box clipped(double x0, double y0, double x1, double y1) const {
    const auto bound = [](double v, int lo, int hi) {
      return static_cast<int>(std::clamp<double>(v, lo, hi));
    };
    return {bound(std::floor(x0), clip_.x0, clip_.x1), bound(std::floor(y0), clip_.y0, clip_.y1),
            bound(std::ceil(x1), clip_.x0, clip_.x1), bound(std::ceil(y1), clip_.y0, clip_.y1)};
  }

  // Adds one segment to the mask and widens `all` by its box.
  void cover(Point a, Point b, double half_width, Box& all) {
    const double reach = half_width + 1;
    const Box box = clipped(std::min(a.x, b.x) - reach, std::min(a.y, b.y) - reach,
                            std::max(a.x, b.x) + reach, std::max(a.y, b.y) + reach);
    for (int y = box.y0; y < box.y1; ++y) {
      for (int x = box.x0; x < box.x1; ++x) {
        const double distance = distance_to_segment({x + 0.5, y + 0.5}, a, b);
        const auto coverage = static_cast<float>(std::clamp(half_width + 0.5 - distance, 0.0, 1.0));
        float& old = mask_[index(x, y)];
        old = std::max(old, coverage);
      }
    }
    all = {std::min(all.x0, box.x0), std::min(all.y0, box.y0), std::max(all.x1, box.x1),
           std::max(all.y1, box.y1)};
  }

  void blend(int x, int y, Color color, double coverage) {
    const double a = coverage * color.alpha;
    uint8_t* pixel = &pixels_[index(x, y) * 3];
    const uint8_t source[] = {color.r, color.g, color.b};
    for (int i = 0; i < 3; ++i) {
      pixel[i] = static_cast<uint8_t>(std::lround(pixel[i] + (source[i] - pixel[i]) * a));
    }
  }

  double scale_;
  int width_, height_;
  std::vector<uint8_t> pixels_;  // [H, W, 3]
  std::vector<float> mask_;      // [H, W], zero between calls
  Box clip_{};
};

}  // namespace

std::unique_ptr<Canvas> make_png_canvas(double width, double height, double scale) {
  return std::make_unique<PngCanvas>(width, height, scale);
}

}  // namespace tarn::apps
