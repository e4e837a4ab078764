// report.cpp - a run's figures: on disk, as curves, and read again.
#include "tarn/apps/gpt/report.h"

#include <nlohmann/json.hpp>

#include "tarn/apps/common/chart.h"
#include "tarn/apps/common/figures.h"
#include "tarn/apps/common/plot.h"

namespace tarn::apps {
namespace {

Figure loss_figure(const GptHistory& h) {
  Series raw = series_of(h.steps, "", 0, &GptStepFigures::step, &GptStepFigures::loss);
  raw.width = 1;
  raw.opacity = 0.3;
  Series train = series_of(h.evals, "train", 0, &GptEvalFigures::step, &GptEvalFigures::train_loss);
  Series val = series_of(h.evals, "val", 1, &GptEvalFigures::step, &GptEvalFigures::val_loss);
  train.markers = val.markers = true;
  return {.title = "Loss",
          .x_label = "step",
          .y_label = "cross entropy per token",
          .series = {raw, train, val}};
}

void add_line(GptHistory& h, const nlohmann::json& j) {
  const int64_t step = j.at("step");
  if (j.contains("val_loss")) {
    h.evals.push_back(
        {.step = step, .train_loss = figure(j, "train_loss"), .val_loss = figure(j, "val_loss")});
  } else {
    h.steps.push_back({.step = step,
                       .loss = figure(j, "loss"),
                       .lr = figure(j, "lr"),
                       .norm = figure(j, "norm"),
                       .milliseconds = figure(j, "ms"),
                       .tokens_per_second = figure(j, "tok_s")});
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
                 .add("tok_s", f.tokens_per_second)
                 .add("mfu", f.mfu));
}

void record(GptHistory& history, RunDir& run, const GptEvalFigures& f) {
  history.evals.push_back(f);
  run.metric(
      JsonObject().add("step", f.step).add("train_loss", f.train_loss).add("val_loss", f.val_loss));
}

GptHistory load_gpt_history(const std::filesystem::path& metrics, int64_t last_step,
                            int64_t evaluated_step) {
  GptHistory history;
  read_metrics(metrics, [&](const nlohmann::json& j) {
    const int64_t last = j.contains("val_loss") ? evaluated_step : last_step;
    if (j.at("step").get<int64_t>() > last) return false;
    add_line(history, j);
    return true;
  });
  return history;
}

void save_plots(const GptHistory& h, const RunDir& run) {
  save_plot(loss_figure(h), run.plot("loss"));
  Figure lr{.title = "Learning rate", .x_label = "step", .y_label = "lr"};
  lr.series = {series_of(h.steps, "lr", 0, &GptStepFigures::step, &GptStepFigures::lr)};
  save_plot(lr, run.plot("lr"));
}

std::string terminal_chart(const GptHistory& h, bool color, int64_t columns) {
  return line_chart(loss_figure(h), {.width = chart_width(columns), .height = 9, .color = color});
}

}  // namespace tarn::apps
