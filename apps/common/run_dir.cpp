// run_dir.cpp - the folder a training run writes into.
#include "tarn/apps/common/run_dir.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <thread>

#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "tarn/apps/common/text.h"
#include "tarn/core/file.h"

namespace tarn::apps {
namespace {

std::string time_text(const char* pattern) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof text, pattern, &parts);
  return text;
}

// First line a command prints; empty if it fails.
std::string first_line(const char* command) {
  std::string line;
  if (FILE* pipe = popen(command, "r")) {
    char buffer[256];
    if (std::fgets(buffer, sizeof buffer, pipe)) line = buffer;
    while (std::fgets(buffer, sizeof buffer, pipe)) {
    }
    if (pclose(pipe) != 0) line.clear();
  }
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// A flag's value in config.json, as the command line would have it.
std::string value_text(const nlohmann::json& value) {
  return value.is_string() ? unescape_bytes(value.get<std::string>()) : value.dump();
}

}  // namespace

std::string default_run_name(std::string_view model, std::string_view data) {
  std::string name = std::string(model) + "-" + std::string(data);
  for (char& c : name) {
    const bool fits = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_';
    if (!fits) c = '-';
  }
  return name + time_text("-%Y%m%d-%H%M%S");
}

JsonObject describe_machine() {
  utsname system{};
  uname(&system);
  const std::string revision = first_line("git rev-parse HEAD 2>/dev/null");
  const bool changed = !first_line("git status --porcelain -uno 2>/dev/null").empty();
  JsonObject machine;
  machine.add("started", time_text("%Y-%m-%dT%H:%M:%S%z")).add("tarn", TARN_VERSION);
  if (revision.empty()) {
    machine.add_json("git", "null");
  } else {
    machine.add("git", revision + (changed ? "-dirty" : ""));
  }
  return machine.add("compiler", std::string("g++ ") + __VERSION__)
      .add("system", std::string(system.sysname) + " " + system.release)
      .add("host", system.nodename)
      .add("cpu", cpu_name())
      .add("cores", static_cast<int64_t>(std::thread::hardware_concurrency()));
}

void check_run_name(const char* flag, const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path path = fs::path(name).lexically_normal();
  const fs::path last = path.has_filename() ? path.filename() : path.parent_path().filename();
  if (last.empty() || last == "." || last == "..") {
    throw UsageError(std::string(flag) + ": expected the name of a new folder; got '" + name + "'");
  }
}

std::string flag_of_run(const std::filesystem::path& path, const std::string& flag) {
  std::ifstream in(path / "config.json");
  const nlohmann::json config = nlohmann::json::parse(in, nullptr, false);
  if (!config.is_object() || !config.contains("flags")) return "";
  const nlohmann::json& flags = config["flags"];
  if (!flags.is_object() || !flags.contains(flag) || flags[flag].is_null()) return "";
  return value_text(flags[flag]);
}

namespace {

// What is wrong with the folder of --resume, more than that its config.json cannot be read.
std::string advice(std::filesystem::path path, int error) {
  if (error != ENOENT && error != ENOTDIR) return "";
  if (!is_there(path.string())) return "; there is no such folder";
  for (int up = 0; up < 2 && path.has_parent_path(); ++up) {
    path = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
    if (is_there((path / "config.json").string())) {
      return "; pass the run's folder: --resume " + shell_quote(path.string());
    }
  }
  return "; it is not the folder of a run";
}

}  // namespace

void inherit_flags(Options& options, const std::filesystem::path& path,
                   const std::vector<std::string>& except) {
  const std::filesystem::path file = path / "config.json";
  std::error_code ignored;  // opening would wait for the writer of a pipe
  if (is_there(file.string()) && !std::filesystem::is_regular_file(file, ignored)) {
    throw std::runtime_error("no run to go on with: " + file.string() + " is not a plain file");
  }
  std::ifstream in(file);
  if (!in) {
    const int error = errno;
    throw std::runtime_error("no run to go on with: cannot read " + file.string() + ": " +
                             std::strerror(error) + advice(path, error));
  }
  try {
    const nlohmann::json config = nlohmann::json::parse(in);
    const std::string program = config.value("program", options.program());
    if (program != options.program()) {
      throw std::runtime_error(path.string() + " is a run of " + program + ", not of " +
                               options.program());
    }
    for (const auto& [name, value] : config.at("flags").items()) {
      if (value.is_null() || std::count(except.begin(), except.end(), "--" + name)) continue;
      options.preset("--" + name, value_text(value));
    }
  } catch (const nlohmann::json::exception& e) {
    throw std::runtime_error(file.string() + " is damaged: " + e.what());
  } catch (const UsageError& e) {
    throw UsageError(file.string() + ": " + e.what());
  }
}

RunDir::RunDir(std::filesystem::path path)
    : path_(std::move(path)), metrics_(path_ / "metrics.jsonl"), log_(path_ / "train.log") {
  constexpr std::chrono::seconds kPatience{3};  // ranks of a killed launcher may be about to end
  if (!log_.lock(kPatience)) {
    throw std::runtime_error("another process trains in " + path_.string());
  }
}

RunDir RunDir::create(const std::filesystem::path& base, const std::string& given) {
  check_run_name("--name", given);
  const std::string name = given.substr(0, given.find_last_not_of('/') + 1);
  make_folder(base);
  for (int number = 1;; ++number) {
    const auto path = base / (number == 1 ? name : name + "-" + std::to_string(number));
    make_folder(path.parent_path());  // a name may hold a slash
    if (mkdir(path.c_str(), 0777) == 0) return RunDir(path);
    if (errno != EEXIST) {
      throw std::runtime_error("cannot create folder " + path.string() + ": " +
                               std::strerror(errno));
    }
  }
}

RunDir RunDir::nowhere() {
  return RunDir("", "/dev/null", "/dev/null");
}

RunDir RunDir::open(const std::filesystem::path& path) {
  if (!is_folder(path.string())) {
    throw std::runtime_error("no run to go on with: " + path.string() + " is not a folder");
  }
  return RunDir(path);
}

std::filesystem::path RunDir::plot(const std::string& file) const {
  make_folder(path_ / "plots");
  return path_ / "plots" / file;
}

void RunDir::write_config(const Options& options, int64_t threads, const JsonObject& extra) const {
  JsonObject config;
  config.add("program", options.program()).add("command", options.command_line());
  config.add("threads", threads).add("flags", options.to_json());
  config.add("machine", describe_machine());
  if (!extra.empty()) config.add("extra", extra);
  write_file(path_ / "config.json", config.pretty() + "\n");
  LineFile(path_ / "args.txt").append(options.command_line());
}

void RunDir::metric(const JsonObject& record) {
  metrics_.append(record.text());
}

void RunDir::log(std::string_view line) {
  log_.append(time_text("%Y-%m-%d %H:%M:%S  ") + std::string(line));
}

void RunDir::sync() {
  metrics_.sync();
  log_.sync();
}

}  // namespace tarn::apps
