// run_profile.h - what a trainer measures of itself: --profile, --memory-report, the rate of
// operations and how much of the machine's peak that is.
#pragma once

#include <optional>
#include <string>

#include "tarn/apps/common/options.h"
#include "tarn/apps/common/run_dir.h"
#include "tarn/core/profiler.h"
#include "tarn/nn/memory_report.h"
#include "tarn/nn/module.h"

namespace tarn::apps {

struct ProfileSettings {
  bool profile = false, memory_report = false, detect_anomaly = false;
  double peak_tflops = 0;  ///< 0: measured
};
void declare_profile_flags(Options& options, ProfileSettings& settings);

/// The measurements of one run. Only the rank that prints asks for profiles.
class RunProfile {
 public:
  /// run: where files go; null: none are written. dtype: what products are computed in. Starts at
  /// once, so make it when the first step is about to begin.
  RunProfile(const ProfileSettings& settings, nn::Module& net, RunDir* run, DType dtype);

  /// Around every forward of training: the first step's operations are counted.
  class Forward {
   public:
    explicit Forward(RunProfile& profile) : profile_(profile) {
      if (profile.steps_ == 0) counter_.emplace();
    }
    ~Forward() {
      if (counter_) profile_.forward_flops_ += counter_->flops();
    }
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    RunProfile& profile_;
    std::optional<FlopCounter> counter_;
  };
  /// A step is over. --profile: writes profile.txt and trace/*.json after the sixth step;
  /// --memory-report: memory.txt after the second.
  void step_done();
  /// The same for a run of fewer steps.
  void finish();

  /// Operations of the model in one step, backward counted as twice the forward and what is
  /// computed again not counted. 0 before the first step.
  double step_flops() const { return steps_ > 0 ? 3 * forward_flops_ : 0; }
  /// Model FLOPs utilisation: the share of the peak that a step of so many seconds reached.
  double mfu(double seconds) const;
  /// "12.3 GFLOP/s, 34.5 % of the peak of 35.6".
  std::string rate_text(double seconds) const;

 private:
  void save_profile();
  void save_memory();

  const ProfileSettings settings_;
  RunDir* run_;
  Device device_;
  std::optional<Profiler> profiler_;
  std::optional<nn::ModuleMemory> memory_;
  int64_t steps_ = 0;
  double forward_flops_ = 0;
  double peak_gflops_;
};

}  // namespace tarn::apps
