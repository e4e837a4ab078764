// font.h - a small stroke font: every glyph is a few lines and arcs, drawn with a round pen.
#pragma once

#include <string>
#include <vector>

#include "tarn/apps/common/canvas.h"

namespace tarn::apps {

/// Strokes of a text in px, the first glyph's baseline starting at (0, 0), y downwards. Characters
/// the font lacks show as a box.
std::vector<std::vector<Point>> text_strokes(const std::string& text, double size);

/// Width of a text in px. The SVG canvas uses other fonts; theirs are about as wide.
double text_width(const std::string& text, double size);

/// Width of the pen in px.
double pen_width(double size, bool bold);

}  // namespace tarn::apps
