// report.h - what a run shows: its figures in metrics.jsonl, curves on disk, a chart in the
// terminal.
//
// metrics.jsonl has two kinds of lines, told apart by their keys:
//   {"step": 20, "loss": 2.93, "lr": 0.0002, "norm": 1.2, "ms": 41.2, "tok_s": 18600,
//    "mfu": 0.41}
//   {"step": 250, "train_loss": 2.31, "val_loss": 2.35}
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tarn/apps/common/run_dir.h"

namespace tarn::apps {

/// One step's figures.
struct GptStepFigures {
  int64_t step = 0;  ///< counted from 1
  double loss = 0, lr = 0, norm = 0, milliseconds = 0, tokens_per_second = 0;
  double mfu = 0;  ///< share of the machine's peak that the model's operations reached
};
/// One estimate's figures.
struct GptEvalFigures {
  int64_t step = 0;
  double train_loss = 0, val_loss = 0;
};

/// What the curves show: every --log-interval-th step, and every estimate.
struct GptHistory {
  std::vector<GptStepFigures> steps;
  std::vector<GptEvalFigures> evals;
};

/// Adds the figures to the history and to metrics.jsonl.
void record(GptHistory& history, RunDir& run, const GptStepFigures& f);
void record(GptHistory& history, RunDir& run, const GptEvalFigures& f);

/// Reads metrics.jsonl of a run that goes on after `last_step`, of which it has evaluated
/// `evaluated_step`; what comes again, and a last line that is not whole, is cut off the file. A
/// missing file is an empty history. Throws FileError on a damaged line, naming it.
GptHistory load_gpt_history(const std::filesystem::path& metrics, int64_t last_step,
                            int64_t evaluated_step);

/// Writes plots/loss and lr as SVG and PNG.
void save_plots(const GptHistory& history, const RunDir& run);
/// The loss curve as text.
std::string terminal_chart(const GptHistory& history, bool color, int64_t columns = 80);

}  // namespace tarn::apps
