// run_dir.h - the folder a training run writes into.
//
//   runs/NAME/  config.json  args.txt  metrics.jsonl  train.log  plots/  checkpoints/
//
// A new run never writes into the folder of an old one. Files fail with their path and the reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tarn/apps/common/file.h"
#include "tarn/apps/common/json_object.h"
#include "tarn/apps/common/options.h"

namespace tarn::apps {

/// "resnet20-fashion-mnist-20260131-154502": the default name of a run that starts now. Characters
/// that do not belong in a file name become '-'.
std::string default_run_name(std::string_view model, std::string_view data);

/// Throws UsageError for what cannot name a new folder: "", ".", "..".
void check_run_name(const char* flag, const std::string& name);

/// What the program runs on: version, git revision of the current folder (or null), compiler, CPU,
/// host, start time.
JsonObject describe_machine();

/// Gives flags that the command line leaves out the values they had in the run at `path` (its
/// config.json), but for those named in `except`. Throws std::runtime_error if the file is missing
/// or damaged, or if another program wrote it.
void inherit_flags(Options& options, const std::filesystem::path& path,
                   const std::vector<std::string>& except);

/// The value of "flag" (without dashes) in the run at `path`, as text; "" if it cannot be known.
std::string flag_of_run(const std::filesystem::path& path, const std::string& flag);

/// A run's folder belongs to one process at a time.
class RunDir {
 public:
  /// Makes base/name; if it exists, base/name-2, -3, ...
  static RunDir create(const std::filesystem::path& base, const std::string& name);
  /// For ranks that leave writing to another: metrics and log go nowhere. REQUIRES: nobody asks for
  /// its plots.
  static RunDir nowhere();
  /// Opens the folder of an earlier run to go on in it. Throws if there is none, or if
  /// another process trains in it.
  static RunDir open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// plots/FILE; the folder around it is made.
  std::filesystem::path plot(const std::string& file) const;

  /// config.json: command, all flags, machine, threads, and what the caller adds; args.txt: the
  /// command line, one for each time the run was started.
  void write_config(const Options& options, int64_t threads, const JsonObject& extra = {}) const;
  /// Adds a line to metrics.jsonl.
  void metric(const JsonObject& record);
  /// Adds a line to train.log, with the time in front.
  void log(std::string_view line);
  /// Both survive a power cut: before a checkpoint counts on them.
  void sync();

 private:
  explicit RunDir(std::filesystem::path path);
  RunDir(std::filesystem::path path, const std::filesystem::path& metrics,
         const std::filesystem::path& log)
      : path_(std::move(path)), metrics_(metrics), log_(log) {}

  std::filesystem::path path_;
  LineFile metrics_, log_;
};

}  // namespace tarn::apps
