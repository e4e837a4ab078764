// plot.cpp - line plots as SVG and PNG: layout, ticks, drawing.
#include "tarn/apps/common/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tarn/apps/common/canvas.h"
#include "tarn/apps/common/file.h"
#include "tarn/apps/common/font.h"
#include "tarn/apps/common/text.h"

namespace tarn::apps {
namespace {

constexpr Color kPalette[] = {{37, 99, 235},  {234, 88, 12}, {22, 163, 74},
                              {147, 51, 234}, {220, 38, 38}, {8, 145, 178}};
constexpr Color kInk{31, 41, 55}, kSoft{107, 114, 128}, kGrid{229, 231, 235}, kAxis{156, 163, 175};
constexpr double kSmall = 12.5, kLabel = 13.5, kTitle = 18;

Range data_range(const Figure& figure, std::vector<double> Series::*values) {
  Range range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const Series& s : figure.series) {
    for (const double v : s.*values) {
      if (!std::isfinite(v)) continue;
      range = {std::min(range.lo, v), std::max(range.hi, v)};
    }
  }
  if (range.lo > range.hi) return {0, 1};
  if (range.lo == range.hi) {  // a single value stands in the middle
    const double air = range.lo == 0 ? 1 : std::fabs(range.lo) * 0.1;
    return {range.lo - air, range.hi + air};
  }
  return range;
}

// Keeps the outline of a long series with about two points per px: the least and the greatest of
// each run of points.
std::vector<Point> thin_out(const std::vector<Point>& points, double width) {
  const size_t runs = static_cast<size_t>(std::max(width, 1.0));
  if (points.size() <= 4 * runs) return points;
  std::vector<Point> kept;
  for (size_t r = 0; r < runs; ++r) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(points.size() * r / runs);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>(points.size() * (r + 1) / runs);
    auto [lo, hi] = std::minmax_element(begin, end, [](Point a, Point b) { return a.y < b.y; });
    if (lo > hi) std::swap(lo, hi);
    kept.push_back(*lo);
    if (lo != hi) kept.push_back(*hi);
  }
  return kept;
}

// Where things stand; all in px.
struct Layout {
  double left, top, right, bottom;  // the plot area
  Range x, y;
  std::vector<double> x_ticks, y_ticks;

  double px(double v) const { return left + (v - x.lo) / (x.hi - x.lo) * (right - left); }
  double py(double v) const { return bottom - (v - y.lo) / (y.hi - y.lo) * (bottom - top); }
};

double tick_step(const std::vector<double>& ticks) {
  return ticks.size() > 1 ? ticks[1] - ticks[0] : 0;
}

Layout lay_out(const Figure& figure, double width, double height) {
  Layout l{};
  l.x = x_range(figure);
  l.y = y_range(figure);
  const bool legend = std::any_of(figure.series.begin(), figure.series.end(),
                                  [](const Series& s) { return !s.name.empty(); });
  l.top = 24 + (figure.title.empty() ? 0 : 30) + (legend ? 26 : 0);
  l.bottom = height - (figure.x_label.empty() ? 42 : 62);
  l.y_ticks = nice_ticks(l.y.lo, l.y.hi, static_cast<int>((l.bottom - l.top) / 55));
  double labels = 0;
  for (const double t : l.y_ticks) {
    labels = std::max(labels, text_width(tick_text(t, tick_step(l.y_ticks)), kSmall));
  }
  l.left = 30 + labels + (figure.y_label.empty() ? 0 : 24);
  l.right = width - 28;
  l.x_ticks = nice_ticks(l.x.lo, l.x.hi, static_cast<int>((l.right - l.left) / 85));
  return l;
}

void draw_axes(Canvas& canvas, const Figure& figure, const Layout& l, double height) {
  for (const double t : l.y_ticks) {
    const Point line[] = {{l.left, l.py(t)}, {l.right, l.py(t)}};
    canvas.polyline(line, 1, kGrid);
    canvas.text({l.left - 10, l.py(t) + 4.5}, tick_text(t, tick_step(l.y_ticks)),
                {.size = kSmall, .color = kSoft, .anchor = Anchor::kEnd});
  }
  for (const double t : l.x_ticks) {
    const Point line[] = {{l.px(t), l.top}, {l.px(t), l.bottom}};
    canvas.polyline(line, 1, {kGrid.r, kGrid.g, kGrid.b, 0.6});
    const Point mark[] = {{l.px(t), l.bottom}, {l.px(t), l.bottom + 5}};
    canvas.polyline(mark, 1, kAxis);
    canvas.text({l.px(t), l.bottom + 21}, tick_text(t, tick_step(l.x_ticks)),
                {.size = kSmall, .color = kSoft, .anchor = Anchor::kMiddle});
  }
  const Point axis[] = {{l.left, l.bottom}, {l.right, l.bottom}};
  canvas.polyline(axis, 1.2, kAxis);
  canvas.text({(l.left + l.right) / 2, height - 17}, figure.x_label,
              {.size = kLabel, .color = kInk, .anchor = Anchor::kMiddle});
  canvas.text({26, (l.top + l.bottom) / 2}, figure.y_label,
              {.size = kLabel, .color = kInk, .anchor = Anchor::kMiddle, .upward = true});
  canvas.text({l.left, 38}, figure.title, {.size = kTitle, .color = kInk, .bold = true});
}

Color color_of(const Figure& figure, size_t i) {
  const int wanted = figure.series[i].color;
  return kPalette[(wanted >= 0 ? static_cast<size_t>(wanted) : i) % std::size(kPalette)];
}

void draw_legend(Canvas& canvas, const Figure& figure, const Layout& l) {
  double x = l.left;
  for (size_t i = 0; i < figure.series.size(); ++i) {
    const Series& s = figure.series[i];
    if (s.name.empty()) continue;
    const double y = l.top - 20;
    const Point sample[] = {{x + 2, y}, {x + 22, y}};
    canvas.polyline(sample, 3, color_of(figure, i));
    canvas.text({x + 30, y + 4.5}, s.name, {.size = kLabel, .color = kInk});
    x += 30 + text_width(s.name, kLabel) + 22;
  }
}

void draw_series(Canvas& canvas, const Series& s, Color color, const Layout& l) {
  color.alpha = s.opacity;
  std::vector<Point> piece;
  const auto flush = [&] {
    if (piece.empty()) return;
    const std::vector<Point> kept = thin_out(piece, l.right - l.left);
    if (kept.size() > 1) canvas.polyline(kept, s.width, color);
    if (s.markers || kept.size() == 1) {
      for (const Point& p : kept) canvas.disc(p, s.width * 1.5 + 0.5, color);
    }
    piece.clear();
  };
  for (size_t i = 0; i < std::min(s.x.size(), s.y.size()); ++i) {
    if (std::isfinite(s.x[i]) && std::isfinite(s.y[i])) {
      piece.push_back({l.px(s.x[i]), l.py(s.y[i])});
    } else {
      flush();
    }
  }
  flush();
}

std::string draw(const Figure& figure, Canvas& canvas, double width, double height) {
  const Layout layout = lay_out(figure, width, height);
  canvas.fill_rect({0, 0}, width, height, {255, 255, 255});
  draw_axes(canvas, figure, layout, height);
  draw_legend(canvas, figure, layout);
  // A little wider than the plot area, so that markers on its edge stay round.
  canvas.clip({layout.left - 6, layout.top - 6}, layout.right - layout.left + 12,
              layout.bottom - layout.top + 12);
  for (size_t i = 0; i < figure.series.size(); ++i) {
    draw_series(canvas, figure.series[i], color_of(figure, i), layout);
  }
  canvas.unclip();
  return canvas.finish();
}

}  // namespace

std::vector<double> nice_ticks(double lo, double hi, int count) {
  if (!(hi > lo) || !std::isfinite(hi - lo)) return {lo};
  const double rough = (hi - lo) / std::max(count, 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double round : {1.0, 2.0, 2.5, 5.0}) {
    if (round * power >= rough * 0.999) {
      step = round * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double slack = step * 1e-6;
  for (double k = std::ceil((lo - slack) / step); k * step <= hi + slack; ++k) {
    ticks.push_back(k == 0 ? 0.0 : k * step);
  }
  return ticks;
}

std::string tick_text(double value, double step) {
  if (step <= 0 || value == 0) return number_text(value == 0 ? 0.0 : value);
  if (step < 1e-4 || std::fabs(value) >= 1e7) return format("%.3g", value);
  int digits = 0;  // as many as the step needs: 0.25 -> 2
  for (double s = step; digits < 6 && std::fabs(s - std::round(s)) > 1e-6 * s; s *= 10) ++digits;
  return format("%.*f", digits, value);
}

Range x_range(const Figure& figure) {
  return data_range(figure, &Series::x);
}

Range y_range(const Figure& figure) {
  Range range = data_range(figure, &Series::y);
  const double span = range.hi - range.lo;
  const bool near_zero = range.lo >= 0 && range.lo < 0.35 * span;
  range = {near_zero ? 0 : range.lo - 0.05 * span, range.hi + 0.05 * span};
  range.lo = figure.y_min.value_or(range.lo);
  range.hi = figure.y_max.value_or(range.hi);
  return range.lo < range.hi ? range : Range{range.lo, range.lo + 1};
}

std::vector<double> smooth(const std::vector<double>& values, double weight) {
  std::vector<double> out;
  double sum = 0, total = 0;
  for (const double v : values) {
    if (std::isfinite(v)) {
      sum = weight * sum + (1 - weight) * v;
      total = weight * total + (1 - weight);
    }
    out.push_back(total > 0 ? sum / total : v);
  }
  return out;
}

std::string plot_svg(const Figure& figure, double width, double height) {
  return draw(figure, *make_svg_canvas(width, height), width, height);
}

std::string plot_png(const Figure& figure, double width, double height, double scale) {
  return draw(figure, *make_png_canvas(width, height, scale), width, height);
}

void save_plot(const Figure& figure, const std::filesystem::path& path) {
  write_file(path.string() + ".svg", plot_svg(figure));
  write_file(path.string() + ".png", plot_png(figure));
}

}  // namespace tarn::apps
