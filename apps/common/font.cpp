// font.cpp - a small stroke font: every glyph is a few lines and arcs, drawn with a round pen.
//
// A glyph is written as strokes divided by '|'. A stroke is points "x,y" joined by lines, and arcs
// "@cx,cy,rx,ry,from,to" (ellipse, degrees, against the clock if to > from) joined to them.
// Capitals are 14 high, small letters 10, descenders reach -4.
#include "tarn/apps/common/font.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numbers>

namespace tarn::apps {
namespace {

constexpr double kEm = 19.6;       // units of the em square: capitals are 0.71 em
constexpr double kSpacing = 3.3;   // between glyphs
constexpr double kDigitWidth = 8;  // all digits are equally wide, so that columns align

struct Source {
  char c;
  const char* strokes;
};

constexpr Source kSources[] = {
    {' ', ""},
    {'!', "0.4,14 0.4,4.6|0.4,0 0.4,0.3"},
    {'"', "0,14 0,10|3,14 3,10"},
    {'#', "3.4,14 1.6,0|8.2,14 6.4,0|0.6,9.6 9.8,9.6|0,4.6 9.2,4.6"},
    {'$', "@4.2,9.7,3.8,2.9,30,270 @4.2,3.9,4.2,2.9,90,-155|4.2,15.4 4.2,-1.4"},
    {'%', "@2.6,10.9,2.6,3.1,0,360|@10.4,3.1,2.6,3.1,0,360|10.6,14 2.4,0"},
    {'&', "10,0 2.4,8.8 @4.4,11,2.9,3,215,-35 1.6,6.2 @3.8,3.6,3.8,3.6,130,330 9.4,6.6"},
    {'\'', "0,14 0,10"},
    {'(', "@6,6,6,11,125,235"},
    {')', "@-2.6,6,6,11,55,-55"},
    {'*', "3,14 3,8|0.4,12.5 5.6,9.5|0.4,9.5 5.6,12.5"},
    {'+', "0,6 8,6|4,10 4,2"},
    {',', "0.9,0.4 0,-2.6"},
    {'-', "0,5.2 5,5.2"},
    {'.', "0.4,0 0.4,0.3"},
    {'/', "0,-1.6 6,14.8"},
    {'0', "@4,7,4,7,0,360"},
    {'1', "1.2,11.4 4.8,14 4.8,0"},
    {'2', "@4,9.9,4,4.1,165,-32 0,0 8,0"},
    {'3', "@3.8,10.6,3.5,3.4,150,-90 @3.8,3.6,4.2,3.6,90,-150"},
    {'4', "6,0 6,14 0,4 8.4,4"},
    {'5', "7.2,14 1.3,14 0.8,7.7 @3.8,4.6,4.2,4.6,136,-148"},
    {'6', "5.8,14 0.72,6.92 @4,4.4,4,4.4,145,505"},
    {'7', "0,14 8,14 3,0"},
    {'8', "@4,10.6,3.4,3.4,0,360|@4,3.6,4,3.6,0,360"},
    {'9', "2.2,0 7.28,7.08 @4,9.6,4,4.4,-35,325"},
    {':', "0.4,0 0.4,0.3|0.4,8.6 0.4,8.9"},
    {';', "0.9,0.4 0,-2.6|0.8,8.6 0.8,8.9"},
    {'<', "7.6,10.2 0,6 7.6,1.8"},
    {'=', "0,8 8,8|0,4 8,4"},
    {'>', "0,10.2 7.6,6 0,1.8"},
    {'?', "@3.6,10.4,3.6,3.6,160,-50 3.6,6.2 3.6,4.6|3.6,0 3.6,0.3"},
    {'@', "@7,5.6,2.8,3.2,0,360|9.8,8.8 9.8,4.4 @11.4,4.4,1.6,2,180,300 @7,6,6.8,7.6,-20,315"},
    {'A', "0,0 5,14 10,0|1.7,4.6 8.3,4.6"},
    {'B', "0,7.4 0,14 4.6,14 @4.6,10.7,3.5,3.3,90,-90 0,7.4 0,0 4.9,0 @4.9,3.7,3.9,3.7,-90,90"},
    {'C', "@5.6,7,5.6,7,45,315"},
    {'D', "0,0 0,14 3.6,14 @3.6,7,6,7,90,-90 0,0"},
    {'E', "8,14 0,14 0,0 8.2,0|0,7.2 7,7.2"},
    {'F', "8,14 0,14 0,0|0,7 7,7"},
    {'G', "@5.6,7,5.6,7,45,330 10.6,6.6 6.4,6.6"},
    {'H', "0,14 0,0|9,14 9,0|0,7.2 9,7.2"},
    {'I', "0.5,14 0.5,0"},
    {'J', "6,14 6,3.6 @3,3.6,3,3.6,0,-170"},
    {'K', "0,14 0,0|8.8,14 0,5|3.4,8.5 9.2,0"},
    {'L', "0,14 0,0 7.6,0"},
    {'M', "0,0 0,14 5.5,4 11,14 11,0"},
    {'N', "0,0 0,14 9,0 9,14"},
    {'O', "@5.8,7,5.8,7,0,360"},
    {'P', "0,0 0,14 4.8,14 @4.8,10.2,3.9,3.8,90,-90 0,6.4"},
    {'Q', "@5.8,7,5.8,7,0,360|7,3.4 11.4,-1"},
    {'R', "0,0 0,14 4.8,14 @4.8,10.3,3.8,3.7,90,-90 0,6.6|4.6,6.6 9,0"},
    {'S', "@4.6,10.5,4.2,3.5,28,270 @4.6,3.5,4.6,3.5,90,-155"},
    {'T', "0,14 9.6,14|4.8,14 4.8,0"},
    {'U', "0,14 0,4.6 @4.5,4.6,4.5,4.6,180,360 9,14"},
    {'V', "0,14 5,0 10,14"},
    {'W', "0,14 3.8,0 7.6,13.4 11.4,0 15.2,14"},
    {'X', "0,14 9.2,0|9.2,14 0,0"},
    {'Y', "0,14 4.8,6.6 9.6,14|4.8,6.6 4.8,0"},
    {'Z', "0.2,14 9,14 0,0 9.2,0"},
    {'[', "3,15 0,15 0,-2.6 3,-2.6"},
    {'\\', "6,-1.6 0,14.8"},
    {']', "0,15 3,15 3,-2.6 0,-2.6"},
    {'^', "0,8.6 3.6,14 7.2,8.6"},
    {'_', "0,-2.2 8,-2.2"},
    {'`', "0,14 2,11.6"},
    {'a', "@4,5,4,5,0,360|8,10 8,0"},
    {'b', "0,14 0,0|@4,5,4,5,0,360"},
    {'c', "@4.2,5,4.2,5,50,310"},
    {'d', "8,14 8,0|@4,5,4,5,0,360"},
    {'e', "0.1,5.2 8,5.2 @4,5,4,5,2,312"},
    {'f', "@4.6,11.4,2.6,2.6,75,180 2,0|0,9.8 5,9.8"},
    {'g', "@4,5,4,5,0,360|8,10 8,-0.6 @4,-0.6,4,3.5,0,-150"},
    {'h', "0,14 0,0|0,6.2 @3.7,6.2,3.7,3.8,180,0 7.4,0"},
    {'i', "0.5,10 0.5,0|0.5,13.3 0.5,13.6"},
    {'j', "2.6,10 2.6,-1.4 @0,-1.4,2.6,2.6,0,-80|2.6,13.3 2.6,13.6"},
    {'k', "0,14 0,0|6.8,10 0,3.8|2.6,6.2 7.2,0"},
    {'l', "0.2,14 0.2,2.4 @2.6,2.4,2.4,2.4,180,270"},
    {'m', "0,10 0,0|0,6.4 @3,6.4,3,3.6,180,0 6,0|6,6.4 @9,6.4,3,3.6,180,0 12,0"},
    {'n', "0,10 0,0|0,6.2 @3.7,6.2,3.7,3.8,180,0 7.4,0"},
    {'o', "@4.1,5,4.1,5,0,360"},
    {'p', "0,10 0,-4|@4,5,4,5,0,360"},
    {'q', "8,10 8,-4|@4,5,4,5,0,360"},
    {'r', "0,10 0,0|0,6.2 @3.7,6.2,3.7,3.8,180,62"},
    {'s', "@3.5,7.6,3.2,2.4,32,270 @3.5,2.6,3.5,2.6,90,-152"},
    {'t', "2,13 2,2.6 @4.6,2.6,2.6,2.6,180,285|0,9.8 5,9.8"},
    {'u', "0,10 0,3.8 @3.7,3.8,3.7,3.8,180,360|7.4,10 7.4,0"},
    {'v', "0,10 3.8,0 7.6,10"},
    {'w', "0,10 3,0 6,9.4 9,0 12,10"},
    {'x', "0,10 7.2,0|7.2,10 0,0"},
    {'y', "0,10 3.9,0|7.8,10 2.34,-4"},
    {'z', "0.2,10 7,10 0,0 7.2,0"},
    {'{', "4,15 @4,12.6,2,2.4,90,180 2,8.2 0,6.2 2,4.2 2,-0.2 @4,-0.2,2,2.4,180,270"},
    {'|', "0.4,15 0.4,-3"},
    {'}', "0,15 @0,12.6,2,2.4,90,0 2,8.2 4,6.2 2,4.2 2,-0.2 @0,-0.2,2,2.4,0,-90"},
    {'~', "@2,5,2,1.6,180,0 @6,5,2,1.6,180,360"},
};

constexpr const char* kMissing = "0,0 0,14 7,14 7,0 0,0";

struct Glyph {
  std::vector<std::vector<Point>> strokes;  // in units, y upwards
  double width = 0;
};

void add_arc(std::vector<Point>& stroke, const double (&v)[6]) {
  const int steps = std::max(2, static_cast<int>(std::fabs(v[5] - v[4]) / 10));
  for (int i = 0; i <= steps; ++i) {
    const double angle = (v[4] + (v[5] - v[4]) * i / steps) * std::numbers::pi / 180;
    stroke.push_back({v[0] + v[2] * std::cos(angle), v[1] + v[3] * std::sin(angle)});
  }
}

Glyph parse(const char* text) {
  Glyph glyph;
  glyph.strokes.emplace_back();
  char* at = const_cast<char*>(text);  // strtod wants a char**, and leaves the text alone
  while (*at) {
    if (*at == '|') glyph.strokes.emplace_back();
    if (*at == '|' || *at == ' ') {
      ++at;
      continue;
    }
    const bool arc = *at == '@';
    double v[6] = {};
    for (int i = 0; i < (arc ? 6 : 2); ++i) v[i] = std::strtod(i > 0 || arc ? at + 1 : at, &at);
    if (arc)
      add_arc(glyph.strokes.back(), v);
    else
      glyph.strokes.back().push_back({v[0], v[1]});
  }
  for (const auto& stroke : glyph.strokes) {
    for (const Point& p : stroke) glyph.width = std::max(glyph.width, p.x);
  }
  return glyph;
}

const Glyph& glyph(char32_t code) {
  static const std::array<Glyph, 128> glyphs = [] {
    std::array<Glyph, 128> all;
    all.fill(parse(kMissing));
    for (const Source& source : kSources) {
      Glyph& g = all[static_cast<size_t>(source.c)] = parse(source.strokes);
      if (source.c >= '0' && source.c <= '9') g.width = kDigitWidth;
      if (source.c == ' ') g.width = 2.8;
    }
    return all;
  }();
  return glyphs[code < 128 ? code : 0];
}

// The code points of a UTF-8 text; the font knows only ASCII, so others need not be exact.
std::u32string code_points(const std::string& text) {
  std::u32string codes;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) != 0x80) codes += byte < 0x80 ? byte : char32_t{0xFFFD};
  }
  return codes;
}

}  // namespace

std::vector<std::vector<Point>> text_strokes(const std::string& text, double size) {
  const double unit = size / kEm;
  std::vector<std::vector<Point>> strokes;
  double x = kSpacing / 2;
  for (const char32_t code : code_points(text)) {
    const Glyph& g = glyph(code);
    for (const auto& stroke : g.strokes) {
      if (stroke.empty()) continue;
      auto& out = strokes.emplace_back();
      for (const Point& p : stroke) out.push_back({(x + p.x) * unit, -p.y * unit});
    }
    x += g.width + kSpacing;
  }
  return strokes;
}

double text_width(const std::string& text, double size) {
  double width = 0;
  for (const char32_t code : code_points(text)) width += glyph(code).width + kSpacing;
  return width * size / kEm;
}

double pen_width(double size, bool bold) {
  return size * (bold ? 0.118 : 0.082);
}

}  // namespace tarn::apps
