// report.cpp - a run's figures: on disk, as curves, and read again.
#include "tarn/apps/gpt/report.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tarn/apps/common/chart.h"
#include "tarn/apps/common/plot.h"
#include "tarn/core/error.h"

namespace tarn::apps {
namespace {

// A Series of one member of every element.
template <class T>
Series series(const std::vector<T>& figures, const char* name, int color, double T::*member) {
  Series s{.name = name, .color = color};
  for (const T& f : figures) {
    s.x.push_back(static_cast<double>(f.step));
    s.y.push_back(f.*member);
  }
  return s;
}

Figure loss_figure(const GptHistory& h) {
  Series raw = series(h.steps, "", 0, &GptStepFigures::loss);
  raw.width = 1;
  raw.opacity = 0.3;
  Series train = series(h.evals, "train", 0, &GptEvalFigures::train_loss);
  Series val = series(h.evals, "val", 1, &GptEvalFigures::val_loss);
  train.markers = val.markers = true;
  return {.title = "Loss",
          .x_label = "step",
          .y_label = "cross entropy per token",
          .series = {raw, train, val}};
}

// A figure that is not finite is null in the file.
double number(const nlohmann::json& j, const char* key) {
  const auto& value = j.at(key);
  return value.is_null() ? std::nan("") : value.get<double>();
}

void add_line(GptHistory& h, const nlohmann::json& j) {
  const int64_t step = j.at("step");
  if (j.contains("val_loss")) {
    h.evals.push_back(
        {.step = step, .train_loss = number(j, "train_loss"), .val_loss = number(j, "val_loss")});
  } else {
    h.steps.push_back({.step = step,
                       .loss = number(j, "loss"),
                       .lr = number(j, "lr"),
                       .norm = number(j, "norm"),
                       .milliseconds = number(j, "ms"),
                       .tokens_per_second = number(j, "tok_s")});
  }
}

}  // namespace

void record(GptHistory& history, RunDir& run, const GptStepFigures& f) {
  history.steps.push_back(f);
  run.metric(JsonObject()
                 .add("step", f.step)
                 .add("loss", f.loss)
                 .add("lr", f.lr)
                 .add("norm", f.norm)
                 .add("ms", f.milliseconds)
                 .add("tok_s", f.tokens_per_second));
}

void record(GptHistory& history, RunDir& run, const GptEvalFigures& f) {
  history.evals.push_back(f);
  run.metric(
      JsonObject().add("step", f.step).add("train_loss", f.train_loss).add("val_loss", f.val_loss));
}

GptHistory load_gpt_history(const std::filesystem::path& metrics, int64_t last_step,
                            int64_t evaluated_step) {
  GptHistory history;
  std::ifstream in(metrics);
  if (!in) return history;
  uint64_t kept = 0;  // bytes
  int64_t number = 1;
  for (std::string line; std::getline(in, line) && !in.eof(); ++number) {
    try {
      const nlohmann::json j = nlohmann::json::parse(line);
      const int64_t last = j.contains("val_loss") ? evaluated_step : last_step;
      if (j.at("step").get<int64_t>() > last) break;
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

void save_plots(const GptHistory& h, const RunDir& run) {
  save_plot(loss_figure(h), run.plot("loss"));
  Figure lr{.title = "Learning rate", .x_label = "step", .y_label = "lr"};
  lr.series = {series(h.steps, "lr", 0, &GptStepFigures::lr)};
  save_plot(lr, run.plot("lr"));
}

std::string terminal_chart(const GptHistory& h, bool color) {
  return line_chart(loss_figure(h), {.width = 64, .height = 9, .color = color});
}

}  // namespace tarn::apps
