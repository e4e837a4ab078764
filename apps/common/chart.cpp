// chart.cpp - a small line chart for the terminal, drawn with braille dots.
#include "tarn/apps/common/chart.h"

#include <algorithm>
#include <cmath>

#include "tarn/apps/common/text.h"

namespace tarn::apps {
namespace {

// As the palette of the plots: blue, orange, green, violet.
constexpr const char* kColors[] = {"\x1b[34m", "\x1b[33m", "\x1b[32m", "\x1b[35m"};
constexpr const char* kReset = "\x1b[0m";

// Dots of one braille cell, by [row][column]; U+2800 + mask is the character.
constexpr uint8_t kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

std::string braille(uint8_t mask) {
  const char32_t code = 0x2800 + mask;
  return {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

class Grid {
 public:
  Grid(int64_t columns, int64_t rows)
      : columns_(columns),
        rows_(rows),
        cells_(static_cast<size_t>(columns * rows)),
        owner_(cells_.size(), 0) {}

  void dot(int64_t x, int64_t y, size_t color) {
    if (x < 0 || y < 0 || x >= 2 * columns_ || y >= 4 * rows_) return;
    const auto cell = static_cast<size_t>(y / 4 * columns_ + x / 2);
    cells_[cell] |= kDots[y % 4][x % 2];
    owner_[cell] = color;
  }

  // A line of dots; a dotted one leaves every other pair of columns out.
  void line(double x0, double y0, double x1, double y1, size_t color, bool dotted) {
    const double steps = std::max({std::fabs(x1 - x0), std::fabs(y1 - y0), 1.0});
    for (double i = 0; i <= steps; ++i) {
      const auto x = std::lround(x0 + (x1 - x0) * i / steps);
      const auto y = std::lround(y0 + (y1 - y0) * i / steps);
      if (!dotted || x % 4 < 2) dot(x, y, color);
    }
  }

  std::string row(int64_t y, bool color) const {
    std::string text;
    for (int64_t x = 0; x < columns_; ++x) {
      const auto cell = static_cast<size_t>(y * columns_ + x);
      if (cells_[cell] == 0) {
        text += ' ';
      } else if (color) {
        text += kColors[owner_[cell]] + braille(cells_[cell]) + kReset;
      } else {
        text += braille(cells_[cell]);
      }
    }
    while (text.ends_with(' ')) text.pop_back();
    return text;
  }

 private:
  int64_t columns_, rows_;
  std::vector<uint8_t> cells_;
  std::vector<size_t> owner_;  // colour of what drew a cell last
};

// The figure without its faint curves: raw values behind a smoothed line only clutter the dots.
Figure without_faint(const Figure& figure) {
  Figure clear = figure;
  clear.series.clear();
  for (size_t i = 0; i < figure.series.size(); ++i) {
    if (figure.series[i].opacity < 1) continue;
    clear.series.push_back(figure.series[i]);
    if (clear.series.back().color < 0) clear.series.back().color = static_cast<int>(i);
  }
  return clear;
}

size_t color_of(const Series& series) {
  return static_cast<size_t>(series.color) % std::size(kColors);
}

std::string header(const Figure& figure, bool color) {
  std::string text = color ? "\x1b[1m" + figure.title + kReset : figure.title;
  for (size_t i = 0; i < figure.series.size(); ++i) {
    if (figure.series[i].name.empty()) continue;
    const std::string sample = color
                                   ? kColors[color_of(figure.series[i])] + std::string("━") + kReset
                               : i % 2 ? "╌"
                                       : "━";
    text += "  " + sample + " " + figure.series[i].name;
  }
  return text + "\n";
}

// "└┬────┬────" and the labels under it.
std::string x_axis(const Figure& figure, Range x, int64_t width, size_t margin) {
  const std::vector<double> ticks =
      nice_ticks(x.lo, x.hi, static_cast<int>(std::max<int64_t>(width / 12, 1)));
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 0;
  std::vector<bool> marks(static_cast<size_t>(width), false);
  std::string labels(margin + 1, ' ');
  for (const double t : ticks) {
    const auto at =
        static_cast<int64_t>((t - x.lo) / (x.hi - x.lo) * static_cast<double>(width - 1) + 0.5);
    marks[static_cast<size_t>(std::clamp<int64_t>(at, 0, width - 1))] = true;
    const std::string label = tick_text(t, step);
    const auto start =
        static_cast<size_t>(std::max<int64_t>(at - static_cast<int64_t>(label.size() - 1) / 2, 0)) +
        margin + 1;
    if (start > labels.size() || labels.size() == margin + 1) {
      labels.resize(std::max(start, labels.size()), ' ');
      labels += label;
    }
  }
  std::string line = std::string(margin, ' ') + "└";
  for (const bool mark : marks) line += mark ? "┬" : "─";
  return line + "\n" + labels + (figure.x_label.empty() ? "" : "  " + figure.x_label) + "\n";
}

}  // namespace

int64_t chart_width(int64_t columns) {
  constexpr int64_t kLabels = 16;  // at the left, and behind the last tick
  return std::clamp<int64_t>(columns - kLabels, 12, 64);
}

std::string line_chart(const Figure& all, const ChartOptions& options) {
  const Figure figure = without_faint(all);
  const Range x = x_range(figure), y = y_range(figure);
  const int64_t width = std::max<int64_t>(options.width, 8);
  const int64_t height = std::max<int64_t>(options.height, 3);
  const auto px = [&](double v) { return (v - x.lo) / (x.hi - x.lo) * (2.0 * width - 1); };
  const auto py = [&](double v) { return (y.hi - v) / (y.hi - y.lo) * (4.0 * height - 1); };

  Grid grid(width, height);
  for (size_t i = 0; i < figure.series.size(); ++i) {
    const Series& s = figure.series[i];
    const bool dotted = !options.color && i % 2 == 1;
    bool joined = false;
    for (size_t k = 0; k < std::min(s.x.size(), s.y.size()); ++k) {
      const bool finite = std::isfinite(s.x[k]) && std::isfinite(s.y[k]);
      if (finite) {
        const size_t from = joined ? k - 1 : k;
        grid.line(px(s.x[from]), py(s.y[from]), px(s.x[k]), py(s.y[k]), color_of(s),
                  dotted && joined);
      }
      joined = finite;
    }
  }

  const std::vector<double> ticks = nice_ticks(y.lo, y.hi, static_cast<int>(height / 2));
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : 0;
  std::vector<std::string> labels(static_cast<size_t>(height));
  size_t margin = 0;
  for (const double t : ticks) {
    const int64_t row = std::clamp<int64_t>(std::lround(py(t)) / 4, 0, height - 1);
    labels[static_cast<size_t>(row)] = tick_text(t, step);
    margin = std::max(margin, labels[static_cast<size_t>(row)].size() + 2);
  }
  std::string out = header(figure, options.color);
  for (int64_t row = 0; row < height; ++row) {
    const std::string& label = labels[static_cast<size_t>(row)];
    out += std::string(margin - label.size() - 1, ' ') + label + (label.empty() ? " │" : " ┤") +
           grid.row(row, options.color) + "\n";
  }
  return out + x_axis(figure, x, width, margin);
}

}  // namespace tarn::apps
