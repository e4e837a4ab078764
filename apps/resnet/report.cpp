// report.cpp - a run's figures: on disk, as curves, and read again.
#include "tarn/apps/resnet/report.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "tarn/apps/common/chart.h"
#include "tarn/apps/common/figures.h"
#include "tarn/apps/common/metrics.h"
#include "tarn/apps/common/plot.h"

namespace tarn::apps {
namespace {

// The value at every recorded step (faint, and smoothed over a thirtieth of the run) and the test
// set's after every epoch.
std::vector<Series> train_and_test(const History& h, double StepFigures::*train,
                                   double EpochFigures::*test) {
  Series raw = series_of(h.steps, "", 0, &StepFigures::epoch, train);
  Series smoothed = series_of(h.steps, "train", 0, &StepFigures::epoch, train);
  const double points = static_cast<double>(h.steps.size());
  smoothed.y = smooth(raw.y, std::clamp(1 - 30 / std::max(points, 1.0), 0.0, 0.98));
  raw.width = 1;
  raw.opacity = 0.3;
  Series tested = series_of(h.epochs, "test", 1, &EpochFigures::epoch, test);
  tested.markers = true;
  return {raw, smoothed, tested};
}

Figure loss_figure(const History& h) {
  return {.title = "Loss",
          .x_label = "epoch",
          .y_label = "cross entropy",
          .series = train_and_test(h, &StepFigures::loss, &EpochFigures::test_loss)};
}

Figure accuracy_figure(const History& h) {
  return {.title = "Accuracy",
          .x_label = "epoch",
          .y_label = "% right",
          .series = train_and_test(h, &StepFigures::accuracy, &EpochFigures::test_accuracy)};
}

void add_line(History& h, const nlohmann::json& j) {
  const int64_t step = j.at("step");
  if (j.contains("test_loss")) {
    h.epochs.push_back({.step = step,
                        .epoch = figure(j, "epoch"),
                        .train_loss = figure(j, "train_loss"),
                        .train_accuracy = figure(j, "train_acc"),
                        .test_loss = figure(j, "test_loss"),
                        .test_accuracy = figure(j, "test_acc"),
                        .lr = figure(j, "lr"),
                        .images_per_second = figure(j, "img_s")});
  } else {
    h.steps.push_back({.step = step,
                       .epoch = figure(j, "epoch"),
                       .loss = figure(j, "loss"),
                       .accuracy = figure(j, "acc"),
                       .lr = figure(j, "lr"),
                       .images_per_second = figure(j, "img_s")});
  }
}

}  // namespace

void record(History& history, RunDir& run, const StepFigures& f) {
  history.steps.push_back(f);
  run.metric(JsonObject()
                 .add("step", f.step)
                 .add("epoch", f.epoch)
                 .add("loss", f.loss)
                 .add("acc", f.accuracy)
                 .add("lr", f.lr)
                 .add("img_s", f.images_per_second)
                 .add("mfu", f.mfu));
}

void record(History& history, RunDir& run, const EpochFigures& f) {
  history.epochs.push_back(f);
  run.metric(JsonObject()
                 .add("step", f.step)
                 .add("epoch", f.epoch)
                 .add("train_loss", f.train_loss)
                 .add("train_acc", f.train_accuracy)
                 .add("test_loss", f.test_loss)
                 .add("test_acc", f.test_accuracy)
                 .add("lr", f.lr)
                 .add("img_s", f.images_per_second)
                 .add("mem_mib", peak_memory_mib()));
}

History load_history(const std::filesystem::path& metrics, int64_t last_step, int64_t epochs) {
  History history;
  read_metrics(metrics, [&](const nlohmann::json& j) {
    if (j.at("step").get<int64_t>() > last_step) return false;
    if (j.contains("test_loss") && figure(j, "epoch") > static_cast<double>(epochs)) return false;
    add_line(history, j);
    return true;
  });
  return history;
}

void save_plots(const History& h, const RunDir& run) {
  save_plot(loss_figure(h), run.plot("loss"));
  save_plot(accuracy_figure(h), run.plot("accuracy"));
  Figure lr{.title = "Learning rate", .x_label = "epoch", .y_label = "lr"};
  lr.series = {series_of(h.steps, "lr", 0, &StepFigures::epoch, &StepFigures::lr)};
  save_plot(lr, run.plot("lr"));
}

std::string terminal_chart(const History& h, bool color, int64_t columns) {
  return line_chart(loss_figure(h), {.width = chart_width(columns), .height = 9, .color = color});
}

}  // namespace tarn::apps
