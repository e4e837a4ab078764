// canvas.h - what a plot is drawn on; there is one for SVG and one for pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tarn::apps {

struct Point {
  double x = 0, y = 0;  // px from the upper left corner, y downwards
};

struct Color {
  uint8_t r = 0, g = 0, b = 0;
  double alpha = 1;
};

enum class Anchor { kStart, kMiddle, kEnd };

struct TextStyle {
  double size = 13;  // px of the em square
  Color color = {};
  Anchor anchor = Anchor::kStart;
  bool bold = false;
  bool upward = false;  // turned by 90 degrees against the clock
};

class Canvas {
 public:
  virtual ~Canvas() = default;
  virtual void fill_rect(Point corner, double width, double height, Color color) = 0;
  virtual void disc(Point center, double radius, Color color) = 0;
  /// Joined segments with round ends.
  virtual void polyline(std::span<const Point> points, double width, Color color) = 0;
  /// A line of text whose baseline starts, is centred or ends at a point.
  virtual void text(Point at, const std::string& text, const TextStyle& style) = 0;
  /// Nothing outside this rectangle is drawn until unclip().
  virtual void clip(Point corner, double width, double height) = 0;
  virtual void unclip() = 0;
  /// The bytes of the file.
  virtual std::string finish() = 0;
};

std::unique_ptr<Canvas> make_svg_canvas(double width, double height);
/// Pixels, width * scale by height * scale; coordinates stay those before scaling.
std::unique_ptr<Canvas> make_png_canvas(double width, double height, double scale);

}  // namespace tarn::apps
