// dist.cpp - DataParallel against DistributedDataParallel, each row in processes of its own.
#include "tarn/apps/bench/dist.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tarn/apps/common/figures.h"
#include "tarn/apps/common/json_object.h"
#include "tarn/apps/common/options.h"
#include "tarn/apps/common/text.h"
#include "tarn/dist/environment.h"

namespace tarn::bench {
namespace {

namespace fs = std::filesystem;

// What a command prints, errors included.
std::string output_of(const std::vector<std::string>& command) {
  std::string line;
  for (const std::string& word : command) line += apps::shell_quote(word) + " ";
  FILE* pipe = popen((line + "2>&1").c_str(), "r");
  TARN_CHECK(pipe, "bench: cannot start ", command[0]);
  std::string text;
  char part[4096];
  while (const size_t n = std::fread(part, 1, sizeof part, pipe)) text.append(part, n);
  pclose(pipe);
  return text;
}

fs::path own_folder() {
  return fs::read_symlink("/proc/self/exe").parent_path();
}

DistRow measure(const DistSettings& s, const std::string& mode, int64_t count) {
  TrainSettings train = s.train;
  std::vector<std::string> command;
  if (mode == "ddp") {
    train.threads = std::max<int64_t>(1, train.threads / count);
    command = {"env", "TARN_DIST_TRANSPORT=" + s.transport, (own_folder() / "tarn-run").string(),
               "--nproc", std::to_string(count)};
  } else if (mode == "dp") {
    train.replicas = count;
  }
  for (std::string& word : train_command(train)) command.push_back(std::move(word));
  DistRow row = read_row(output_of(command));
  row.mode = mode;
  row.count = count;
  row.threads = train.threads;
  return row;
}

void print_json(const DistRow& r, const std::string& name) {
  apps::JsonObject line;
  line.add("name", name).add("mode", r.mode).add("count", r.count).add("threads", r.threads);
  if (!r.error.empty()) {
    line.add("error", r.error);
  } else {
    line.add("median_s", r.seconds)
        .add("items_per_s", r.items_per_s)
        .add("comm_s", r.comm_s)
        .add("exposed_s", r.exposed_s)
        .add("first_mib", r.first_mib)
        .add("other_mib", r.other_mib);
  }
  std::cout << line.text() << std::endl;
}

// What a GPU does not tell is a dash.
std::string figure_text(double value, int digits, const char* unit) {
  return std::isnan(value) ? "-" : apps::format("%.*f %s", digits, value, unit);
}

void print_row(const DistRow& r, double alone) {
  std::printf("%-4s %2lld x %2lld threads ", r.mode.c_str(), static_cast<long long>(r.count),
              static_cast<long long>(r.threads));
  if (!r.error.empty()) {
    std::printf("%s\n", r.error.c_str());
  } else if (r.mode == "one") {
    std::printf("%9.1f ms %9.1f/s %6s %10s %7s %9.0f %9s %7.0f %%\n", r.seconds * 1e3,
                r.items_per_s, "1.00", "-", "-", r.first_mib, "-", 100.0);
  } else {
    const std::string other = r.other_mib > 0 ? std::to_string(std::llround(r.other_mib)) : "-";
    std::printf("%9.1f ms %9.1f/s %6.2f %10s %7s %9.0f %9s %9s\n", r.seconds * 1e3, r.items_per_s,
                alone / r.seconds, figure_text(r.comm_s * 1e3, 1, "ms").c_str(),
                figure_text(100 * r.hidden(), 0, "%").c_str(), r.first_mib, other.c_str(),
                figure_text(100 * r.computing(), 0, "%").c_str());
  }
  std::fflush(stdout);
}

void print_heading(const DistSettings& s) {
  std::printf(
      "%s, batch %lld, %s%s, %s; one: alone, dp: DataParallel, ddp: a process per rank\n"
      "sync: parameters and gradients on their way, hidden: behind backward; MiB: peak of tensors "
      "on\nthe first device or rank, and on the fullest of the others; computing: of the time\n"
      "-: what a GPU does not tell\n"
      "%-18s %12s %11s %6s %10s %7s %9s %9s %9s\n",
      s.train.model.c_str(), static_cast<long long>(s.train.batch), s.train.dtype.c_str(),
      s.train.tf32 ? " (TF32)" : "", s.train.device.c_str(), "", "step", "items", "speed", "sync",
      "hidden", "first MiB", "other MiB", "computing");
}

}  // namespace

std::vector<std::string> train_command(const TrainSettings& s) {
  std::vector<std::string> command = {(own_folder() / "tarn-bench").string(),
                                      "train",
                                      "--json",
                                      "--model",
                                      s.model,
                                      "--stem",
                                      s.stem,
                                      "--input",
                                      s.input,
                                      "--batch",
                                      std::to_string(s.batch),
                                      "--block",
                                      std::to_string(s.block),
                                      "--steps",
                                      std::to_string(s.steps),
                                      "--dtype",
                                      s.dtype,
                                      "--device",
                                      s.device,
                                      "--threads",
                                      std::to_string(s.threads),
                                      "--replicas",
                                      std::to_string(s.replicas)};
  if (s.tf32) command.push_back("--tf32");
  return command;
}

DistRow read_row(const std::string& output) {
  DistRow row;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_discarded() || !json.is_object() || !json.contains("median_s")) {
      // The first error is the reason; without one, the last line.
      if (!line.empty() && row.error.find("error: ") == std::string::npos) row.error = line;
      continue;
    }
    row.seconds = json.at("median_s");
    row.items_per_s = json.at("items_per_s");
    row.comm_s = apps::figure(json, "comm_s");
    row.exposed_s = apps::figure(json, "exposed_s");
    row.first_mib = json.at("first_mib");
    row.other_mib = json.at("other_mib");
  }
  if (row.seconds > 0) {
    row.error.clear();
  } else if (row.error.empty()) {
    row.error = "no figures were printed";
  }
  return row;
}

int bench_dist(const DistSettings& s, bool json) {
  if (!fs::exists(own_folder() / "tarn-run")) {
    throw apps::UsageError("dist: tarn-run must be beside tarn-bench, in " + own_folder().string());
  }
  if (dist::read_environment().size > 1) {
    throw apps::UsageError(
        "dist starts ranks of its own; run it without tarn-run or another launcher");
  }
  if (!json) print_heading(s);
  double alone = 0;
  bool good = true;
  const auto row = [&](const std::string& mode, int64_t count) {
    const DistRow r = measure(s, mode, count);
    if (mode == "one") alone = r.seconds;
    good = good && r.error.empty();
    json ? print_json(r, s.train.model) : print_row(r, alone);
  };
  row("one", 1);
  for (const char* mode : {"dp", "ddp"}) {
    for (const int64_t count : s.counts) row(mode, count);
  }
  return good ? 0 : 1;
}

}  // namespace tarn::bench
