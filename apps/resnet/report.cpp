// report.cpp - curves of a run.
#include "tarn/apps/resnet/report.h"

#include "tarn/apps/common/chart.h"
#include "tarn/apps/common/plot.h"

namespace tarn::apps {
namespace {

template <class Get>
Series by_epoch(const History& h, const char* name, Get get) {
  Series s{.name = name, .markers = true};
  for (const EpochFigures& e : h.epochs) {
    s.x.push_back(e.epoch);
    s.y.push_back(get(e));
  }
  return s;
}

Figure loss_figure(const History& h) {
  Figure f{.title = "Loss", .x_label = "epoch", .y_label = "cross entropy"};
  f.series.push_back({.x = h.step, .y = h.step_loss, .width = 1, .opacity = 0.25, .color = 0});
  Series smoothed{.name = "train", .x = h.step, .y = smooth(h.step_loss, 0.95), .color = 0};
  f.series.push_back(std::move(smoothed));
  f.series.push_back(by_epoch(h, "test", [](const EpochFigures& e) { return e.test_loss; }));
  f.series.back().color = 1;
  return f;
}

Figure accuracy_figure(const History& h) {
  Figure f{.title = "Accuracy", .x_label = "epoch", .y_label = "% right"};
  f.series.push_back(by_epoch(h, "train", [](const EpochFigures& e) { return e.train_accuracy; }));
  f.series.push_back(by_epoch(h, "test", [](const EpochFigures& e) { return e.test_accuracy; }));
  return f;
}

}  // namespace

void save_plots(const History& h, const RunDir& run) {
  save_plot(loss_figure(h), run.plot("loss"));
  save_plot(accuracy_figure(h), run.plot("accuracy"));
  Figure lr{.title = "Learning rate", .x_label = "epoch", .y_label = "lr"};
  lr.series.push_back({.name = "lr", .x = h.step, .y = h.step_lr});
  save_plot(lr, run.plot("lr"));
}

std::string terminal_chart(const History& h, bool color) {
  return line_chart(loss_figure(h), {.width = 64, .height = 9, .color = color});
}

}  // namespace tarn::apps
