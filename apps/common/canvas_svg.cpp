// canvas_svg.cpp - a canvas that writes SVG 1.1.
#include "tarn/apps/common/canvas.h"
#include "tarn/apps/common/text.h"

namespace tarn::apps {
namespace {

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;  // control characters are not XML
  }
  return out;
}

std::string paint(const char* attribute, Color color) {
  std::string out = format("%s=\"#%02x%02x%02x\"", attribute, color.r, color.g, color.b);
  if (color.alpha < 1) out += format(" %s-opacity=\"%.3g\"", attribute, color.alpha);
  return out;
}

class SvgCanvas : public Canvas {
 public:
  SvgCanvas(double width, double height) {
    body_ = format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g "
        "%g\" font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif\">\n",
        width, height, width, height);
  }

  void fill_rect(Point at, double width, double height, Color color) override {
    body_ += format("<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" ", at.x, at.y,
                    width, height) +
             paint("fill", color) + "/>\n";
  }

  void disc(Point at, double radius, Color color) override {
    body_ += format("<circle cx=\"%.2f\" cy=\"%.2f\" r=\"%.2f\" ", at.x, at.y, radius) +
             paint("fill", color) + "/>\n";
  }

  void polyline(std::span<const Point> points, double width, Color color) override {
    body_ += "<polyline fill=\"none\" stroke-linecap=\"round\" stroke-linejoin=\"round\" " +
             format("stroke-width=\"%g\" ", width) + paint("stroke", color) + " points=\"";
    for (const Point& p : points) body_ += format("%.2f,%.2f ", p.x, p.y);
    body_ += "\"/>\n";
  }

  void text(Point at, const std::string& text, const TextStyle& style) override {
    const char* anchor = style.anchor == Anchor::kStart    ? "start"
                         : style.anchor == Anchor::kMiddle ? "middle"
                                                           : "end";
    body_ += format("<text x=\"%.2f\" y=\"%.2f\" font-size=\"%g\" text-anchor=\"%s\" ", at.x, at.y,
                    style.size, anchor) +
             paint("fill", style.color);
    if (style.bold) body_ += " font-weight=\"600\"";
    if (style.upward) body_ += format(" transform=\"rotate(-90 %.2f %.2f)\"", at.x, at.y);
    body_ += ">" + escape(text) + "</text>\n";
  }

  void clip(Point at, double width, double height) override {
    body_ += format(
        "<clipPath id=\"clip%d\"><rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>"
        "</clipPath>\n<g clip-path=\"url(#clip%d)\">\n",
        clips_, at.x, at.y, width, height, clips_);
    ++clips_;
  }

  void unclip() override { body_ += "</g>\n"; }
  std::string finish() override { return body_ + "</svg>\n"; }

 private:
  std::string body_;
  int clips_ = 0;
};

}  // namespace

std::unique_ptr<Canvas> make_svg_canvas(double width, double height) {
  return std::make_unique<SvgCanvas>(width, height);
}

}  // namespace tarn::apps
