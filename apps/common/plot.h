// plot.h - line plots as SVG and PNG: title, axes with round ticks, gridlines, legend.
//
//   Figure figure{.title = "Loss", .x_label = "epoch", .y_label = "cross entropy"};
//   figure.series.push_back({.name = "train", .x = epochs, .y = losses});
//   save_plot(figure, run.plot("loss"));        // plots/loss.svg and plots/loss.png
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tarn::apps {

/// One line of a plot. Points whose x or y is not finite leave a gap.
struct Series {
  std::string name = {};  // in the legend; empty: not listed
  std::vector<double> x = {}, y = {};
  double width = 2;      // of the line, in px
  double opacity = 1;    // below 1 for a raw curve behind its smoothed one
  bool markers = false;  // a dot at every point
  int color = -1;        // index into the palette; -1: the place among the series
};

struct Figure {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<Series> series = {};
  std::optional<double> y_min = {}, y_max = {};  // unset: from the data
};

/// Round numbers (1, 2, 2.5 or 5 times a power of ten) from lo to hi, about `count` of them.
std::vector<double> nice_ticks(double lo, double hi, int count);
/// A tick's label with as many digits as the distance of ticks needs: "0.25", "1500", "2e-05".
std::string tick_text(double value, double step);

/// The range of the axes of a figure: finite data with a little air, zero where it is near.
struct Range {
  double lo = 0, hi = 1;
};
Range x_range(const Figure& figure);
Range y_range(const Figure& figure);

/// An exponential mean with bias correction, as TensorBoard draws it; weight in [0, 1).
std::vector<double> smooth(const std::vector<double>& values, double weight = 0.9);

/// The figure as the bytes of an SVG or PNG file of this size in px (PNG: times scale).
std::string plot_svg(const Figure& figure, double width = 800, double height = 480);
std::string plot_png(const Figure& figure, double width = 800, double height = 480,
                     double scale = 2);

/// Writes path + ".svg" and path + ".png". Throws std::runtime_error if a file cannot be written.
void save_plot(const Figure& figure, const std::filesystem::path& path);

}  // namespace tarn::apps
