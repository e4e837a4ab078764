// report.h - what a run shows: its figures in metrics.jsonl, curves on disk, a chart in the
// terminal.
//
// metrics.jsonl has two kinds of lines, told apart by their keys:
//   {"step": 20, "epoch": 0.043, "loss": 1.93, "acc": 31.2, "lr": 0.0041, "img_s": 2310,
//    "mfu": 0.31}
//   {"step": 468, "epoch": 1, "train_loss": .., "train_acc": .., "test_loss": .., "test_acc": ..,
//   ..}
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tarn/apps/common/run_dir.h"

namespace tarn::apps {

/// One step's figures. Accuracies in percent.
struct StepFigures {
  int64_t step = 0;  ///< counted from 1
  double epoch = 0;  ///< steps divided by the steps of an epoch
  double loss = 0, accuracy = 0, lr = 0, images_per_second = 0;
  double mfu = 0;  ///< share of the machine's peak that the model's operations reached
};

/// One epoch's figures.
struct EpochFigures {
  int64_t step = 0;
  double epoch = 0;  ///< counted from 1
  double train_loss = 0, train_accuracy = 0, test_loss = 0, test_accuracy = 0;
  double lr = 0, images_per_second = 0;
};

/// What the curves show: every --print-freq-th step, and every epoch.
struct History {
  std::vector<StepFigures> steps;
  std::vector<EpochFigures> epochs;
};

/// Adds the figures to the history and to metrics.jsonl.
void record(History& history, RunDir& run, const StepFigures& f);
void record(History& history, RunDir& run, const EpochFigures& f);

/// Reads metrics.jsonl of a run that goes on after `last_step`, with `epochs` whole epochs done.
/// What comes again, and a last line that is not whole, is cut off the file. A missing file is an
/// empty history. Throws FileError on a damaged line, naming it.
History load_history(const std::filesystem::path& metrics, int64_t last_step, int64_t epochs);

/// Writes plots/loss, accuracy and lr as SVG and PNG.
void save_plots(const History& history, const RunDir& run);
/// The loss curve as text.
std::string terminal_chart(const History& history, bool color, int64_t columns = 80);

}  // namespace tarn::apps
