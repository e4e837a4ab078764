// progress.cpp - a progress bar that looks like tqdm's.
#include "tarn/apps/common/progress.h"

#include <algorithm>
#include <iostream>

#include <unistd.h>

#include "tarn/apps/common/terminal.h"
#include "tarn/apps/common/text.h"
#include "tarn/apps/common/timing.h"

namespace tarn::apps {
namespace {

constexpr double kSmoothing = 0.3;  // tqdm's default

// A bar in eighths of a column: "████▌     ".
std::string bar_text(double fraction, int64_t width) {
  static const char* const kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths =
      static_cast<int64_t>(std::clamp(fraction, 0.0, 1.0) * 8 * static_cast<double>(width));
  std::string bar;
  for (int64_t i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  bar.append(static_cast<size_t>(width - (eighths + 7) / 8), ' ');
  return bar;
}

std::string rate_text(double rate, const std::string& unit) {
  if (rate <= 0) return "?" + unit + "/s";
  if (rate < 1) return format("%5.2fs/%s", 1 / rate, unit.c_str());
  return format(rate < 999.5 ? "%5.2f%s/s" : "%.0f%s/s", rate, unit.c_str());
}

std::string cut(const std::string& text, int64_t width) {
  if (display_width(text) <= width) return text;
  std::string out;
  for (const char c : text) {
    const bool starts = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (starts && display_width(out) >= width) break;
    out += c;
  }
  return out;
}

}  // namespace

std::string progress_line(const ProgressState& s, int64_t width, int64_t bar_width) {
  const std::string label = s.label.empty() ? "" : s.label + ": ";
  std::string tail = "[" + clock_text(s.elapsed);
  if (s.total > 0) {
    const double left = static_cast<double>(std::max<int64_t>(s.total - s.done, 0));
    tail += "<" + (s.rate > 0 ? clock_text(left / s.rate) : std::string("?"));
  }
  tail += ", " + rate_text(s.rate, s.unit) + (s.postfix.empty() ? "" : ", " + s.postfix) + "]";
  if (s.total <= 0) {
    return cut(label + std::to_string(s.done) + s.unit + " " + tail, width);
  }
  const double fraction = static_cast<double>(s.done) / static_cast<double>(s.total);
  const std::string percent = format("%3d%%", static_cast<int>(100 * fraction));
  const std::string count = std::to_string(s.done) + "/" + std::to_string(s.total) + " ";
  if (bar_width <= 0) return cut(label + percent + " " + count + tail, width);
  // Around the bar stand "|" and "| ". Where a bar of some columns does not fit, first the count
  // goes, which the percentage tells as well, then the label; last the bar.
  constexpr int64_t kLeastBar = 10;
  const auto room = [&](const std::string& text) {
    return width - display_width(text) - display_width(percent) - display_width(tail) - 3;
  };
  const auto line = [&](const std::string& before, const std::string& after) {
    const int64_t columns = std::min(room(before + after), bar_width);
    return before + percent + "|" + bar_text(fraction, columns) + "| " + after + tail;
  };
  const int64_t least = std::min(kLeastBar, bar_width);
  if (room(label + count) >= least) return line(label, count);
  if (room(label) >= least) return line(label, "");
  if (room("") >= least) return line("", "");
  return cut(label + percent + " " + count + tail, width);
}

void Progress::Ema::add(double x) {
  sum = kSmoothing * x + (1 - kSmoothing) * sum;
  weight = kSmoothing + (1 - kSmoothing) * weight;
}

double Progress::Ema::value() const {
  return weight > 0 ? sum / weight : 0;
}

Progress::Progress(int64_t total, ProgressOptions options)
    : options_(std::move(options)), out_(options_.out ? options_.out : &std::cerr) {
  state_.label = options_.label;
  state_.unit = options_.unit;
  state_.total = total;
  state_.done = last_rate_done_ = options_.initial;
  terminal_ = options_.terminal.value_or(!options_.out && is_terminal(STDERR_FILENO));
  if (!options_.clock) options_.clock = now_s;
  start_ = last_draw_ = last_rate_time_ = options_.clock();
  if (terminal_) draw(false);
}

Progress::~Progress() {
  try {
    close();
  } catch (...) {  // a bar that cannot be drawn must not end the program
  }
}

double Progress::elapsed() const {
  return options_.clock() - start_;
}

double Progress::mean_rate() const {
  const double seconds = elapsed();
  return seconds > 0 ? static_cast<double>(state_.done - options_.initial) / seconds : 0;
}

void Progress::advance(int64_t n) {
  state_.done += n;
  if (!options_.enabled || closed_) return;
  const double now = options_.clock();
  if (now - last_draw_ < (terminal_ ? options_.redraw_every : options_.plain_every)) return;
  steps_.add(static_cast<double>(state_.done - last_rate_done_));
  seconds_.add(now - last_rate_time_);
  last_rate_done_ = state_.done;
  last_rate_time_ = last_draw_ = now;
  draw(false);
}

void Progress::draw(bool last) {
  if (!options_.enabled || closed_) return;
  state_.elapsed = elapsed();
  state_.rate = last || seconds_.value() <= 0 ? mean_rate() : steps_.value() / seconds_.value();
  if (!terminal_) {
    *out_ << progress_line(state_, 1000, 0) << "\n" << std::flush;
    return;
  }
  // One column stays free: some terminals wrap a line that fills the last one.
  const int64_t width = options_.width.value_or(terminal_width(STDERR_FILENO)) - 1;
  *out_ << "\r" << progress_line(state_, width) << "\x1b[K" << std::flush;
  drawn_ = true;
}

void Progress::print(std::string_view line) {
  if (drawn_ && !closed_) *out_ << "\r\x1b[K";
  *out_ << line << "\n" << std::flush;
  if (terminal_) draw(false);
}

void Progress::close() {
  if (closed_) return;
  if (options_.leave || !terminal_) {
    draw(true);
    if (drawn_) *out_ << "\n" << std::flush;
  } else if (drawn_) {
    *out_ << "\r\x1b[K" << std::flush;
  }
  closed_ = true;
}

}  // namespace tarn::apps
