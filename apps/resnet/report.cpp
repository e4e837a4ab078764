// report.cpp - a run's figures: on disk, as curves, and read again.
#include "tarn/apps/resnet/report.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tarn/apps/common/chart.h"
#include "tarn/apps/common/metrics.h"
#include "tarn/apps/common/plot.h"
#include "tarn/core/error.h"

namespace tarn::apps {
namespace {

// A Series of one member of every element.
template <class T>
Series series(const std::vector<T>& figures, const char* name, int color, double T::*member) {
  Series s{.name = name, .color = color};
  for (const T& f : figures) {
    s.x.push_back(f.epoch);
    s.y.push_back(f.*member);
  }
  return s;
}

// The value at every recorded step (faint, and smoothed over a thirtieth of the run) and the test
// set's after every epoch.
std::vector<Series> train_and_test(const History& h, double StepFigures::*train,
                                   double EpochFigures::*test) {
  Series raw = series(h.steps, "", 0, train);
  Series smoothed = series(h.steps, "train", 0, train);
  const double points = static_cast<double>(h.steps.size());
  smoothed.y = smooth(raw.y, std::clamp(1 - 30 / std::max(points, 1.0), 0.0, 0.98));
  raw.width = 1;
  raw.opacity = 0.3;
  Series tested = series(h.epochs, "test", 1, test);
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

// A figure that is not finite is null in the file.
double number(const nlohmann::json& j, const char* key) {
  const auto& value = j.at(key);
  return value.is_null() ? std::nan("") : value.get<double>();
}

void add_line(History& h, const nlohmann::json& j) {
  const int64_t step = j.at("step");
  if (j.contains("test_loss")) {
    h.epochs.push_back({.step = step,
                        .epoch = number(j, "epoch"),
                        .train_loss = number(j, "train_loss"),
                        .train_accuracy = number(j, "train_acc"),
                        .test_loss = number(j, "test_loss"),
                        .test_accuracy = number(j, "test_acc"),
                        .lr = number(j, "lr"),
                        .images_per_second = number(j, "img_s")});
  } else {
    h.steps.push_back({.step = step,
                       .epoch = number(j, "epoch"),
                       .loss = number(j, "loss"),
                       .accuracy = number(j, "acc"),
                       .lr = number(j, "lr"),
                       .images_per_second = number(j, "img_s")});
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
                 .add("img_s", f.images_per_second));
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

History load_history(const std::filesystem::path& metrics, int64_t last_step) {
  History history;
  std::ifstream in(metrics);
  if (!in) return history;
  uint64_t kept = 0;  // bytes
  int64_t number = 1;
  for (std::string line; std::getline(in, line) && !in.eof(); ++number) {
    try {
      const nlohmann::json j = nlohmann::json::parse(line);
      if (j.at("step").get<int64_t>() > last_step) break;
      add_line(history, j);
    } catch (const nlohmann::json::exception& e) {
      detail::fail<FileError>("resume: line ", number, " of ", metrics.string(),
                              " is damaged; remove it to go on: ", e.what());
    }
    kept += line.size() + 1;
  }
  std::filesystem::resize_file(metrics, kept);
  return history;
}

void save_plots(const History& h, const RunDir& run) {
  save_plot(loss_figure(h), run.plot("loss"));
  save_plot(accuracy_figure(h), run.plot("accuracy"));
  Figure lr{.title = "Learning rate", .x_label = "epoch", .y_label = "lr"};
  lr.series = {series(h.steps, "lr", 0, &StepFigures::lr)};
  save_plot(lr, run.plot("lr"));
}

std::string terminal_chart(const History& h, bool color) {
  return line_chart(loss_figure(h), {.width = 64, .height = 9, .color = color});
}

}  // namespace tarn::apps
