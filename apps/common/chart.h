// chart.h - a small line chart for the terminal, drawn with braille dots (2 x 4 per character).
#pragma once

#include <cstdint>
#include <string>

#include "tarn/apps/common/plot.h"

namespace tarn::apps {

struct ChartOptions {
  int64_t width = 64, height = 10;  // columns and rows of the plot area
  bool color = false;               // ANSI colours; without them a second line is dotted
};

/// The plot area, with its labels around it, for a terminal of so many columns.
int64_t chart_width(int64_t columns);

/// Title, legend, axes with labels and the lines of a figure (but the faint ones), as text:
///   loss   ━ train  ━ test
///    2.0 ┤⢣
///    1.0 ┤ ⠣⡀
///    0.0 ┤  ⠈⠒⠤⢄⣀⣀⣀
///        └┬────────┬
///         0        10  epoch
std::string line_chart(const Figure& figure, const ChartOptions& options = {});

}  // namespace tarn::apps
