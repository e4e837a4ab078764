// report.h - what a run shows: curves on disk, a chart and a summary in the terminal.
#pragma once

#include <string>
#include <vector>

#include "tarn/apps/common/run_dir.h"

namespace tarn::apps {

/// One epoch's figures. Accuracies in percent.
struct EpochFigures {
  double epoch = 0;  ///< counted from 1
  double train_loss = 0, train_accuracy = 0, test_loss = 0, test_accuracy = 0;
};

struct History {
  std::vector<double> step, step_loss, step_lr;  ///< every step; step counted in epochs
  std::vector<EpochFigures> epochs;
};

/// Writes plots/loss, accuracy and lr as SVG and PNG.
void save_plots(const History& history, const RunDir& run);
/// The loss and accuracy curves as text.
std::string terminal_chart(const History& history, bool color);

}  // namespace tarn::apps
