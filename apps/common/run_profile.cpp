// run_profile.cpp - profiles and memory reports of the first steps, and MFU.
#include "tarn/apps/common/run_profile.h"

#include <cstdio>

#include "tarn/apps/common/peak.h"
#include "tarn/apps/common/text.h"

namespace tarn::apps {
namespace {

// Caches, memory and threads have warmed up by the fourth step.
constexpr ProfilerSchedule kSchedule{.wait = 2, .warmup = 1, .active = 3, .repeat = 1};
constexpr int64_t kMemorySteps = 2;  // the optimizer's state is made in the first

Device device_of(const nn::Module& net) {
  const auto parameters = net.parameters();
  return parameters.empty() ? kCPU : parameters[0].device();
}

}  // namespace

void declare_profile_flags(Options& options, ProfileSettings& s) {
  options.group("Measuring");
  options.add("--profile", &s.profile,
              "time every operation of steps 4 to 6: a table in profile.txt and on the terminal, a "
              "trace for ui.perfetto.dev in trace/");
  options.add(
      "--memory-report", &s.memory_report,
      "after two steps, what holds the memory: by kind, operation and module, in memory.txt "
      "and on the terminal");
  options.add(
      "--detect-anomaly", &s.detect_anomaly,
      "stop at the first NaN, or infinity in backward, and name operation, module and index; "
      "slow");
  options
      .add("--peak-tflops", &s.peak_tflops,
           "what 100 % of the machine are, for the utilisation (MFU) in train.log and at the end")
      .at_least(0)
      .default_text("measured");
}

RunProfile::RunProfile(const ProfileSettings& settings, nn::Module& net, RunDir* run, DType dtype)
    : settings_(settings),
      run_(run),
      device_(device_of(net)),
      peak_gflops_(settings.peak_tflops > 0 ? settings.peak_tflops * 1e3
                                            : measure_peak_gflops(device_, dtype)) {
  if (!run_) return;
  if (settings_.profile) {
    profiler_.emplace(ProfilerOptions{.schedule = kSchedule,
                                      .shapes = true,
                                      .synchronize = device_.is_cuda(),
                                      .on_trace_ready = [this](Profiler&) { save_profile(); }});
  }
  if (settings_.memory_report) {
    reset_peak_memory(device_);
    memory_.emplace(net);
  }
}

void RunProfile::step_done() {
  ++steps_;
  if (profiler_) profiler_->step();
  if (memory_ && steps_ >= kMemorySteps) save_memory();
}

void RunProfile::finish() {
  if (profiler_) profiler_->stop();
  profiler_.reset();
  if (memory_ && steps_ > 0) save_memory();
}

void RunProfile::save_profile() {
  const std::string table = profiler_->table() + "\n" +
                            profiler_->table({.sort_by = "total", .limit = 20, .modules = true});
  write_file(run_->path() / "profile.txt", table);
  make_folder(run_->path() / "trace");
  profiler_->save_trace((run_->path() / "trace" / "rank-0.pt.trace.json").string());
  std::printf("\n%s\n", table.c_str());
  run_->log("profile.txt and trace/ written");
}

void RunProfile::save_memory() {
  const std::string text = memory_summary(device_) + memory_->table();
  memory_.reset();
  write_file(run_->path() / "memory.txt", text);
  std::printf("\n%s\n", text.c_str());
  run_->log("memory.txt written");
}

double RunProfile::mfu(double seconds) const {
  return peak_gflops_ > 0 && seconds > 0 ? step_flops() / seconds / (peak_gflops_ * 1e9) : 0;
}

std::string RunProfile::rate_text(double seconds) const {
  return format("%.1f GFLOP/s, %.1f %% of the peak of %.1f", step_flops() / seconds * 1e-9,
                100 * mfu(seconds), peak_gflops_);
}

}  // namespace tarn::apps
