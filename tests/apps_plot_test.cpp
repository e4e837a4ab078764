// apps_plot_test.cpp - ticks, SVG, PNG and the terminal chart.
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "tarn/apps/common/plot.h"

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wsign-compare"
#include <stb/stb_image.h>
#pragma GCC diagnostic pop

#include "tarn/apps/common/canvas.h"
#include "tarn/apps/common/chart.h"
#include "tarn/apps/common/font.h"
#include "tarn/apps/common/text.h"

namespace tarn::apps {
namespace {

Figure figure() {
  Figure f{.title = "Loss & <more>", .x_label = "epoch", .y_label = "nats"};
  f.series.push_back({.name = "train", .x = {1, 2, 3, 4}, .y = {2, 1, 0.5, 0.25}});
  f.series.push_back({.name = "test", .x = {1, 2, 3, 4}, .y = {2, 1.5, NAN, 1}, .markers = true});
  return f;
}

struct Image {
  explicit Image(const std::string& png) {
    int channels = 0;
    data = stbi_load_from_memory(reinterpret_cast<const stbi_uc*>(png.data()),
                                 static_cast<int>(png.size()), &width, &height, &channels, 3);
  }
  ~Image() { stbi_image_free(data); }
  std::vector<int> at(int x, int y) const {
    const stbi_uc* p = data + (y * width + x) * 3;
    return {p[0], p[1], p[2]};
  }
  int width = 0, height = 0;
  stbi_uc* data;
};

TEST(Plot, ticks_are_round_numbers_inside_the_range) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(0.1, 0.9, 4), (std::vector<double>{0.2, 0.4, 0.6000000000000001, 0.8}));
  EXPECT_EQ(nice_ticks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(nice_ticks(3, 3, 4), (std::vector<double>{3}));
}

TEST(Plot, tick_labels_have_the_digits_the_step_needs) {
  EXPECT_EQ(tick_text(0.6000000000000001, 0.2), "0.6");
  EXPECT_EQ(tick_text(2.5, 0.25), "2.50");
  EXPECT_EQ(tick_text(1500, 500), "1500");
  EXPECT_EQ(tick_text(0, 0.5), "0");
  EXPECT_EQ(tick_text(2e-5, 1e-5), "2e-05");
}

TEST(Plot, ranges_follow_the_finite_data_and_the_wish) {
  Figure f = figure();
  EXPECT_EQ(x_range(f).lo, 1);
  EXPECT_EQ(x_range(f).hi, 4);
  EXPECT_EQ(y_range(f).lo, 0);  // 0.25 is near zero beside a span of 1.75
  f.y_max = 5;
  EXPECT_EQ(y_range(f).hi, 5);
  EXPECT_EQ(y_range(Figure{}).lo, 0);
  f.series = {{.x = {1}, .y = {7}}};
  EXPECT_LT(y_range(f).hi - y_range(f).lo, 6);  // round the value
}

TEST(Plot, smoothing_has_no_bias_at_the_start) {
  EXPECT_EQ(smooth({4, 4, 4}), (std::vector<double>{4, 4, 4}));
  EXPECT_NEAR(smooth({0, 1}, 0.5)[1], 2.0 / 3, 1e-12);  // (0.25*0 + 0.5*1) / 0.75
}

TEST(Plot, svg_holds_the_words_escaped_and_one_line_per_piece) {
  const std::string svg = plot_svg(figure());
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg.substr(0, 60);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  for (const char* word : {"Loss &amp; &lt;more&gt;", ">epoch<", ">nats<", ">train<", ">test<"}) {
    EXPECT_NE(svg.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(svg.find("nan"), std::string::npos);  // the gap splits the line instead
  size_t discs = 0;
  for (size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++discs;
  EXPECT_EQ(discs, 3u);  // the finite points of the series with markers
}

TEST(Plot, png_has_the_size_asked_for_and_the_colours_of_the_lines) {
  const Image image(plot_png(figure(), 400, 300, 2));
  ASSERT_NE(image.data, nullptr);
  EXPECT_EQ(image.width, 800);
  EXPECT_EQ(image.height, 600);
  EXPECT_EQ(image.at(0, 0), (std::vector<int>{255, 255, 255}));
  int blue = 0, orange = 0;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      blue += image.at(x, y) == std::vector<int>{37, 99, 235};
      orange += image.at(x, y) == std::vector<int>{234, 88, 12};
    }
  }
  EXPECT_GT(blue, 500);
  EXPECT_GT(orange, 300);
}

TEST(Plot, long_series_stay_small_and_keep_their_peaks) {
  Figure f;
  f.series.resize(1);
  for (int i = 0; i < 100000; ++i) {
    f.series[0].x.push_back(i);
    f.series[0].y.push_back(i == 50000 ? 10 : 0);
  }
  const std::string svg = plot_svg(f);
  EXPECT_LT(svg.size(), 60000u);
  // The peak stands at y = 10 of 10.5: the top of the area is 24, its bottom 480 - 42.
  EXPECT_NE(svg.find(format(",%.2f ", 438 - 10 / 10.5 * 414)), std::string::npos);
}

TEST(Plot, an_empty_figure_and_odd_values_draw_axes_only) {
  Figure f;
  EXPECT_FALSE(plot_png(f).empty());
  f.series.push_back({.name = "x", .x = {NAN, INFINITY}, .y = {1, 2}});
  EXPECT_EQ(plot_svg(f).find("nan"), std::string::npos);
  EXPECT_FALSE(line_chart(f).empty());
}

TEST(Canvas, strokes_are_antialiased_and_blend_once) {
  const auto canvas = make_png_canvas(20, 10, 1);
  const Point zigzag[] = {{2, 5}, {18, 5}, {2, 5}};
  canvas->polyline(zigzag, 4, {0, 0, 0, 0.5});
  const Image image(canvas->finish());
  EXPECT_EQ(image.at(10, 5)[0], 128);  // drawn twice, darkened once: 255 - 255/2
  EXPECT_EQ(image.at(10, 1)[0], 255);
  const auto fine = make_png_canvas(20, 10, 1);
  const Point line[] = {{0, 5}, {20, 5}};
  fine->polyline(line, 1, {0, 0, 0});  // lies half on row 4, half on row 5
  const Image two(fine->finish());
  EXPECT_NEAR(two.at(10, 4)[0], 128, 1);
  EXPECT_NEAR(two.at(10, 5)[0], 128, 1);
}

TEST(Canvas, nothing_is_drawn_outside_the_clip) {
  const auto canvas = make_png_canvas(20, 20, 1);
  canvas->clip({5, 5}, 10, 10);
  canvas->fill_rect({0, 0}, 20, 20, {0, 0, 0});
  const Image image(canvas->finish());
  EXPECT_EQ(image.at(4, 10)[0], 255);
  EXPECT_EQ(image.at(5, 5)[0], 0);
  EXPECT_EQ(image.at(15, 10)[0], 255);
}

TEST(Font, all_printable_characters_have_a_glyph_and_digits_are_equally_wide) {
  const auto box = text_strokes("\x7f", 14);
  for (char c = '!'; c <= '~'; ++c) {
    const auto strokes = text_strokes(std::string(1, c), 14);
    ASSERT_FALSE(strokes.empty()) << c;
    EXPECT_FALSE(strokes.size() == 1 && strokes[0].size() == 5 && strokes[0][2].x == box[0][2].x)
        << c;
    for (const auto& stroke : strokes) {
      for (const Point& p : stroke) {
        EXPECT_GE(p.x, 0) << c;
        EXPECT_LT(std::fabs(p.y), 14) << c;
      }
    }
  }
  EXPECT_EQ(text_width("1", 14), text_width("8", 14));
  EXPECT_GT(text_width("\u00fc", 14), 0);  // drawn as a box
}

TEST(Chart, lines_fit_the_width_and_show_title_legend_and_axes) {
  const std::string chart = line_chart(figure(), {.width = 40, .height = 8});
  EXPECT_TRUE(chart.starts_with("Loss & <more>  ━ train  ╌ test\n")) << chart;
  EXPECT_NE(chart.find(" 2 ┤⠢"), std::string::npos) << chart;
  EXPECT_NE(chart.find("└┬"), std::string::npos);
  EXPECT_NE(chart.find("epoch"), std::string::npos);
  EXPECT_EQ(std::count(chart.begin(), chart.end(), '\n'), 1 + 8 + 2);
  EXPECT_EQ(chart.find('\x1b'), std::string::npos);
  EXPECT_NE(line_chart(figure(), {.color = true}).find("\x1b[34m"), std::string::npos);
}

TEST(Chart, a_narrow_terminal_gets_a_narrow_chart) {
  EXPECT_EQ(chart_width(200), 64);
  EXPECT_EQ(chart_width(80), 64);
  EXPECT_EQ(chart_width(50), 34);
  EXPECT_EQ(chart_width(1), 12);
}

TEST(Chart, a_straight_line_runs_from_corner_to_corner) {
  Figure f;
  f.series.push_back({.x = {0, 1}, .y = {0, 1}});
  f.y_min = 0;
  f.y_max = 1;
  const std::string chart = line_chart(f, {.width = 8, .height = 4});
  EXPECT_NE(chart.find("⡠⠊\n"), std::string::npos) << chart;
}

}  // namespace
}  // namespace tarn::apps
