// progress.h - a progress bar that looks like tqdm's.
//
//   Progress bar(loader.size(), {.label = "epoch 1", .unit = "img"});
//   for (...) { ...; bar.postfix("loss=0.231, acc=91.2"); bar.advance(batch); }
//
//   epoch 1:  45%|████▌     | 45/100 [00:12<00:15,  3.61it/s, loss=0.231]
//
// On a terminal the line is redrawn at most every 0.1 s; elsewhere (a file, a pipe) a plain line is
// written every 10 s. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace tarn::apps {

struct ProgressOptions {
  std::string label = {};       // in front of the bar
  std::string unit = "it";      // what is counted
  int64_t initial = 0;          // done before: not for the rate
  bool enabled = true;          // false: writes nothing at all (--no-progress, ranks other than 0)
  bool leave = true;            // keep the finished line; false clears it
  double redraw_every = 0.1;    // seconds, on a terminal
  double plain_every = 10;      // seconds between lines where there is no terminal
  std::ostream* out = nullptr;  // nullptr: standard error
  // For tests; unset, they are asked of the system.
  std::optional<bool> terminal = {};
  std::optional<int64_t> width = {};
  std::function<double()> clock = {};  // seconds
};

/// What one line of a progress bar shows.
struct ProgressState {
  std::string label = {}, unit = "it", postfix = {};
  int64_t done = 0, total = 0;   // total 0: unknown
  double elapsed = 0, rate = 0;  // seconds; units per second, 0 while unknown
};

/// The line for a state, at most width columns wide. bar_width 0 leaves the bar out.
std::string progress_line(const ProgressState& state, int64_t width, int64_t bar_width = 40);

class Progress {
 public:
  /// total 0 means unknown: a counter without a bar.
  explicit Progress(int64_t total, ProgressOptions options = {});
  /// Closes the bar.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Counts n more units and redraws if it is time.
  void advance(int64_t n = 1);
  /// Text shown after the rate, e.g. "loss=0.231".
  void postfix(std::string text) { state_.postfix = std::move(text); }
  /// Writes a line above the bar (to the same stream), even where the bar is disabled.
  void print(std::string_view line);
  /// Draws the last state with the mean rate and ends the line. Later calls do nothing.
  void close();

  int64_t done() const { return state_.done; }
  /// Seconds since the bar was made.
  double elapsed() const;
  /// Units per second over the whole time, without the initial ones.
  double mean_rate() const;

 private:
  // tqdm's exponential mean with bias correction: recent speed, not the average since the start.
  struct Ema {
    void add(double x);
    double value() const;
    double sum = 0, weight = 0;
  };
  void draw(bool last);

  ProgressOptions options_;
  ProgressState state_;
  std::ostream* out_;
  bool terminal_, closed_ = false, drawn_ = false;
  double start_, last_draw_, last_rate_time_;
  int64_t last_rate_done_ = 0;
  Ema steps_, seconds_;
};

}  // namespace tarn::apps
