// settings.h - tarn-run's flags, which are torchrun's, and the split of its command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tarn/apps/common/options.h"

namespace tarn::apps {

struct RunSettings {
  int64_t nodes = 1, node_rank = 0;
  std::string nproc = "auto";          ///< a number, "auto", "cpu" or "gpu"
  std::string master_addr;             ///< empty: 127.0.0.1, for one host
  std::optional<int64_t> master_port;  ///< unset: any free port where one host holds all ranks
  bool standalone = false;
  int64_t max_restarts = 0;
  std::string log_dir;
  double monitor_interval = 0.1, grace = 5;
  std::vector<std::string> command;  ///< the program and its arguments, as they are
};

void declare_run_flags(Options& options, RunSettings& settings);

/// The arguments of tarn-run itself, and from the first word that is no flag (or after "--") the
/// command. Throws UsageError where --nproc took the name of the program.
struct SplitArguments {
  std::vector<std::string> own, command;
};
SplitArguments split_arguments(const std::vector<std::string>& arguments);

/// Throws UsageError for flags that contradict each other, or no command.
void check_run_settings(const RunSettings& settings);
/// Ranks on this host. "auto": the GPUs if there are any, else 1.
int local_ranks(const RunSettings& settings);
/// The program's path: as given, on PATH, or beside tarn-run. Throws UsageError if there is none.
std::string find_program(const std::string& name);

}  // namespace tarn::apps
