// apps_progress_test.cpp - the progress bar and the metric line, against tqdm's and torchvision's.
#include <sstream>

#include <gtest/gtest.h>

#include "tarn/apps/common/metrics.h"
#include "tarn/apps/common/progress.h"
#include "tarn/apps/common/text.h"

namespace tarn::apps {
namespace {

ProgressState at_45() {
  return {.postfix = "loss=0.231", .done = 45, .total = 100, .elapsed = 12.4, .rate = 3.61};
}

TEST(Progress, a_line_looks_like_tqdm) {
  EXPECT_EQ(progress_line(at_45(), 200, 10),
            " 45%|████▌     | 45/100 [00:12<00:15,  3.61it/s, loss=0.231]");
}

TEST(Progress, slow_steps_show_seconds_per_step_and_hours) {
  ProgressState s = at_45();
  s.label = "epoch 1";
  s.unit = "step";
  s.rate = 0.25;  // 55 steps left: 220 s
  s.elapsed = 3725;
  s.postfix.clear();
  EXPECT_EQ(progress_line(s, 200, 4), "epoch 1:  45%|█▊  | 45/100 [1:02:05<03:40,  4.00s/step]");
}

TEST(Progress, unknown_totals_and_rates_have_their_form) {
  EXPECT_EQ(progress_line({.done = 7, .elapsed = 3}, 80), "7it [00:03, ?it/s]");
  EXPECT_EQ(progress_line({.done = 0, .total = 9}, 80, 4), "  0%|    | 0/9 [00:00<?, ?it/s]");
}

TEST(Progress, a_narrow_terminal_is_never_overrun) {
  for (int64_t width = 1; width < 90; ++width) {
    EXPECT_LE(display_width(progress_line(at_45(), width)), width);
  }
}

TEST(Progress, a_line_of_80_columns_has_a_bar) {
  const ProgressState s{.label = "Epoch 1/7",
                        .unit = "img",
                        .postfix = "loss=0.2313, acc=91.23 %",
                        .done = 27000,
                        .total = 60000,
                        .elapsed = 12,
                        .rate = 2230};
  const auto blocks = [](const std::string& line) {
    const size_t bar = line.find('|') + 1;
    return display_width(line.substr(bar, line.find('|', bar) - bar));
  };
  for (int64_t width = 66; width < 120; ++width) {
    const std::string line = progress_line(s, width);
    EXPECT_GE(blocks(line), 10) << line;
    EXPECT_LE(display_width(line), width) << line;
  }
  EXPECT_TRUE(progress_line(s, 110).find("27000/60000") != std::string::npos);
  EXPECT_TRUE(progress_line(s, 85).starts_with("Epoch 1/7:  45%|")) << progress_line(s, 85);
}

struct FakeTerminal {
  std::ostringstream out;
  double now = 0;
  ProgressOptions options(bool terminal) {
    return {.out = &out, .terminal = terminal, .width = 80, .clock = [this] { return now; }};
  }
};

TEST(Progress, a_terminal_is_redrawn_at_most_ten_times_a_second) {
  FakeTerminal fake;
  {
    Progress bar(1000, fake.options(true));
    for (int i = 0; i < 1000; ++i) {
      fake.now += 0.001;
      bar.advance();
    }
  }
  const std::string text = fake.out.str();
  const auto draws = std::count(text.begin(), text.end(), '\r');
  EXPECT_GE(draws, 9);
  EXPECT_LE(draws, 12);  // first, about ten while running, last
  EXPECT_TRUE(text.ends_with("1000/1000 [00:01<00:00, 1000it/s]\x1b[K\n")) << text;
}

TEST(Progress, without_a_terminal_lines_come_at_intervals) {
  FakeTerminal fake;
  {
    Progress bar(50, fake.options(false));
    for (int i = 0; i < 50; ++i) {
      fake.now += 0.5;
      bar.advance();
    }
  }
  EXPECT_EQ(fake.out.str(),
            " 40% 20/50 [00:10<00:15,  2.00it/s]\n"
            " 80% 40/50 [00:20<00:05,  2.00it/s]\n"
            "100% 50/50 [00:25<00:00,  2.00it/s]\n");
}

TEST(Progress, disabled_it_writes_nothing) {
  FakeTerminal fake;
  ProgressOptions options = fake.options(true);
  options.enabled = false;
  Progress bar(2, options);
  bar.advance(2);
  bar.close();
  EXPECT_EQ(fake.out.str(), "");
  EXPECT_EQ(bar.done(), 2);
}

TEST(Progress, lines_are_printed_above_the_bar) {
  FakeTerminal fake;
  Progress bar(2, fake.options(true));
  fake.out.str("");
  bar.print("saved");
  EXPECT_TRUE(fake.out.str().starts_with("\r\x1b[Ksaved\n\r  0%|")) << fake.out.str();
}

TEST(Progress, recent_speed_counts_more_than_the_average) {
  FakeTerminal fake;
  Progress bar(0, fake.options(true));
  for (int i = 0; i < 20; ++i) fake.now += 1, bar.advance(1);    // 1 a second
  for (int i = 0; i < 20; ++i) fake.now += 1, bar.advance(100);  // then 100 a second
  const std::string text = fake.out.str();
  const double rate = std::stod(text.substr(text.rfind(", ") + 2));
  EXPECT_GT(rate, 95);
  EXPECT_NEAR(bar.mean_rate(), 50.5, 1e-9);  // (20 + 2000) / 40
}

TEST(Progress, what_was_done_before_counts_for_the_bar_and_not_for_the_rate) {
  FakeTerminal fake;
  ProgressOptions options = fake.options(true);
  options.initial = 90;
  Progress bar(100, options);
  for (int i = 0; i < 5; ++i) fake.now += 1, bar.advance(1);
  EXPECT_EQ(bar.mean_rate(), 1);
  EXPECT_EQ(bar.done(), 95);
  EXPECT_NE(fake.out.str().find("95/100 [00:05<00:05,  1.00it/s"), std::string::npos)
      << fake.out.str();
}

TEST(Metrics, smoothed_values_keep_a_window_and_a_weighted_mean) {
  SmoothedValue v(4);
  for (const double x : {9., 1., 2., 3., 4.}) v.update(x, x == 9 ? 6 : 1);
  EXPECT_EQ(v.median(), 2);                        // of 1 2 3 4: the lower middle
  EXPECT_EQ(v.mean(), 2.5);                        // of the window
  EXPECT_EQ(v.max(), 4);                           // of the window
  EXPECT_EQ(v.global_mean(), (9. * 6 + 10) / 10);  // all, weighted
  EXPECT_EQ(v.value(), 4);
}

TEST(Metrics, the_line_is_torchvisions) {
  MetricLogger log;
  log.add("lr", MeterStyle::kValue);
  log.add("img/s", MeterStyle::kRate);
  log.update("lr", 0.1 + 1e-16);  // shown to six digits
  log.update("img/s", 812.41);
  log.update("loss", 6.9401);
  log.update("loss", 6.9123);
  log.add("acc1", MeterStyle::kPercent);
  log.update("acc1", 0.3125, 32);
  const std::string line = log.line("Epoch: [0]", 10, 1563);
  EXPECT_TRUE(
      line.starts_with("Epoch: [0]  [  10/1563]  eta: 0:00:00  lr: 0.1  img/s: 812.4  "
                       "loss: 6.9123 (6.9262)  acc1: 0.31 (0.31)  "
                       "time: 0.0000  data: 0.0000  max mem: "))
      << line;
}

TEST(Metrics, steps_are_timed) {
  MetricLogger log;
  log.data_ready();
  log.step_done(8);
  EXPECT_GT(log["img/s"].value(), 0);
  EXPECT_LE(log.data_time().value(), log.step_time().value());
  EXPECT_GT(peak_memory_mib(), 0);
  EXPECT_THROW(log["loss"], std::out_of_range);
}

TEST(Metrics, times_read_as_in_tqdm_and_python) {
  EXPECT_EQ(clock_text(59.9), "00:59");
  EXPECT_EQ(clock_text(36000), "10:00:00");
  EXPECT_EQ(timedelta_text(131), "0:02:11");
  EXPECT_EQ(timedelta_text(86400 * 2 + 61), "2 days, 0:01:01");
}

}  // namespace
}  // namespace tarn::apps
