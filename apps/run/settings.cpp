// settings.cpp - tarn-run's flags and the split of its command line.
#include "tarn/apps/run/settings.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <sched.h>
#include <unistd.h>

#include "tarn/apps/run/launcher.h"
#include "tarn/core/device.h"
#include "tarn/core/file.h"

namespace tarn::apps {
namespace {

constexpr double kMostSeconds = 86400;

// 0 if the text is no number of ranks.
int rank_count(const std::string& text) {
  int n = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, n);
  return error == std::errc() && stop == end && n >= 1 && n <= 1024 ? n : 0;
}

bool is_named_count(const std::string& text) {
  return text == "auto" || text == "cpu" || text == "gpu";
}

}  // namespace

void declare_run_flags(Options& o, RunSettings& s) {
  o.group("Command");
  o.positional("PROGRAM", &s.command, "what every rank runs, followed by its own arguments")
      .required();
  o.group("Ranks");
  o.add("--nproc", &s.nproc,
        "ranks on this host: a number, auto (one per GPU, else 1), gpu, or cpu (one per core); "
        "torchrun's --nproc-per-node is the same")
      .value_name("N");
  // Not an alias, so that messages name what was typed.
  o.add("--nproc-per-node", &s.nproc, "as --nproc").hidden();
  o.add("--nnodes", &s.nodes, "hosts; start tarn-run once on each").at_least(1);
  o.add("--node-rank", &s.node_rank, "number of this host, from 0").at_least(0);
  o.group("Meeting");
  o.add("--master-addr", &s.master_addr, "name or address of host 0, as the others reach it")
      .default_text("127.0.0.1, for one host")
      .not_empty();
  o.add("--master-port", &s.master_port, "a free port of host 0")
      .range(1, 65535)
      .default_text("29500; with one host any free port");
  o.add("--standalone", &s.standalone, "one host, any free port (the default with --nnodes 1)");
  o.group("Failures");
  o.add("--max-restarts", &s.max_restarts, "how often all ranks are started anew after a failure")
      .at_least(0);
  o.add("--log-dir", &s.log_dir, "folder for the output of all ranks but rank 0")
      .value_name("DIR")
      .default_text("a temporary folder, kept if a message names it");
  o.add("--monitor-interval", &s.monitor_interval, "seconds between looks at the ranks")
      .range(0.001, kMostSeconds);
  o.add("--grace", &s.grace, "seconds from asking a rank to end until it is killed")
      .range(0, kMostSeconds);
  o.epilog(
      "PROGRAM runs once per rank with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
      "MASTER_ADDR\n"
      "and MASTER_PORT, and with its share of the cores in OMP_NUM_THREADS unless that is set.\n"
      "Examples:\n"
      "  tarn-run --nproc 2 tarn-resnet --epochs 1\n"
      "  tarn-run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc 4 tarn-resnet");
}

SplitArguments split_arguments(const std::vector<std::string>& arguments) {
  SplitArguments split;
  size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& a = arguments[i];
    if (a == "--") {
      ++i;
      break;
    }
    if (a.size() < 2 || a[0] != '-') break;
    split.own.push_back(a);
    const bool alone = a == "--standalone" || a == "--no-standalone" || a == "--help" ||
                       a == "-h" || a == "--version" || a.find('=') != std::string::npos;
    if (!alone && i + 1 < arguments.size()) split.own.push_back(arguments[++i]);
  }
  split.command.assign(arguments.begin() + static_cast<int64_t>(i), arguments.end());
  const size_t n = split.own.size();
  if (split.command.empty() && n >= 2 && split.own[n - 2].starts_with("--nproc")) {
    const std::string &flag = split.own[n - 2], &value = split.own[n - 1];
    if (value[0] != '-' && !is_named_count(value) && rank_count(value) == 0) {
      throw UsageError("which program? " + flag + " took '" + value + "'; tarn-run " + flag +
                       " N PROGRAM [its arguments]");
    }
  }
  return split;
}

void check_run_settings(const RunSettings& s) {
  const auto fail = [](const std::string& text) { throw UsageError(text); };
  if (s.command.empty()) fail("which program? tarn-run [flags] PROGRAM [its arguments]");
  if (s.node_rank >= s.nodes) {
    fail("--node-rank must be below --nnodes; got " + std::to_string(s.node_rank) + " of " +
         std::to_string(s.nodes));
  }
  if (s.standalone && s.nodes > 1) {
    fail("--standalone is for one host; got --nnodes " + std::to_string(s.nodes));
  }
  if (s.nodes > 1 && s.master_addr.empty()) {
    fail("--nnodes " + std::to_string(s.nodes) +
         " needs --master-addr: host 0 as the other hosts reach it");
  }
  local_ranks(s);
}

int local_ranks(const RunSettings& s) {
  if (s.nproc == "cpu") return cores_here();
  if (s.nproc == "gpu" || s.nproc == "auto") {
    const int gpus = static_cast<int>(available_devices().size()) - 1;
    if (gpus > 0) return gpus;
    if (s.nproc == "auto") return 1;
    throw UsageError("--nproc gpu: this host has no GPU that tarn can use");
  }
  const int n = rank_count(s.nproc);
  if (n == 0) {
    throw UsageError("--nproc must be a number from 1 to 1024, auto, cpu or gpu; got \"" + s.nproc +
                     "\"");
  }
  return n;
}

std::string find_program(const std::string& name) {
  namespace fs = std::filesystem;
  // Which error it is does not matter: what cannot be looked at, a link to itself say, does not
  // run.
  std::error_code error;
  const auto runs = [&error](const fs::path& p) {
    return fs::is_regular_file(p, error) && ::access(p.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    if (runs(name)) return name;
    throw UsageError("cannot run " + name + ": " +
                     (is_there(name) ? "it is not executable" : "there is no such file"));
  }
  const char* variable = std::getenv("PATH");
  std::string path = variable ? variable : "";
  path += ":" + fs::read_symlink("/proc/self/exe", error).parent_path().string();
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    const fs::path candidate = fs::path(path.substr(at, end - at)) / name;
    if (end > at && runs(candidate)) return candidate;
    at = end + 1;
  }
  throw UsageError("cannot find the program " + name + " on PATH or beside tarn-run");
}

}  // namespace tarn::apps
