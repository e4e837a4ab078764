// dist.h - DataParallel against DistributedDataParallel over numbers of devices or ranks.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tarn/apps/bench/train.h"

namespace tarn::bench {

struct DistSettings {
  TrainSettings train;                   ///< threads: of all ranks together
  std::vector<int64_t> counts{1, 2, 4};  ///< devices or ranks
  std::string transport = "auto";        ///< of the ranks, as TARN_DIST_TRANSPORT
};

/// One row of the comparison: a step of the same global batch.
struct DistRow {
  std::string mode;  ///< "one", "dp" or "ddp"
  int64_t count = 1, threads = 1;
  double seconds = 0, items_per_s = 0;
  double comm_s = 0, exposed_s = 0;     ///< TrainResult's
  double first_mib = 0, other_mib = 0;  ///< likewise
  std::string error;                    ///< why there are no figures, else ""
  /// NaN where exposed_s is, as the next.
  double hidden() const { return hidden_share(comm_s, exposed_s); }
  /// Share of the step in which the devices were not waiting for parameters or gradients.
  double computing() const { return seconds > 0 ? 1 - exposed_s / seconds : 0; }
};

/// The command that measures these settings in a process of its own.
std::vector<std::string> train_command(const TrainSettings& settings);

/// What "tarn-bench train --json" says in its last line; error where there is none.
DistRow read_row(const std::string& output);

/// Measures every row in processes of its own (this program again, DDP under tarn-run, which must
/// be beside it) and prints the table, or with json a line each. Returns the exit code: 1 if a row
/// failed. Throws UsageError where tarn-run is missing, or has started this process.
int bench_dist(const DistSettings& settings, bool json);

}  // namespace tarn::bench
