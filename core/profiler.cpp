// profiler.cpp - the schedule, and the recorder that writes down what threads do.
#include "tarn/core/profiler.h"

#include <utility>

#include "tarn/core/error.h"
#include "tarn/core/kernel_work.h"
#include "tarn/core/profile_recorder.h"

namespace tarn {

ProfilerAction profiler_action(const ProfilerSchedule& s, int64_t step) {
  step -= s.skip_first;
  const int64_t cycle = s.wait + s.warmup + s.active;
  if (step < 0 || (s.repeat > 0 && step / cycle >= s.repeat)) return ProfilerAction::kNone;
  const int64_t at = step % cycle;
  if (at < s.wait) return ProfilerAction::kNone;
  if (at < s.wait + s.warmup) return ProfilerAction::kWarmup;
  return at + 1 < cycle ? ProfilerAction::kRecord : ProfilerAction::kRecordAndSave;
}

Profiler::Profiler(ProfilerOptions options) : options_(std::move(options)) {
  if (const auto& s = options_.schedule) {
    TARN_CHECK_AS(
        ValueError,
        s->wait >= 0 && s->warmup >= 0 && s->active > 0 && s->repeat >= 0 && s->skip_first >= 0,
        "Profiler: a schedule needs at least one active step and no negative number; got "
        "wait ",
        s->wait, ", warmup ", s->warmup, ", active ", s->active, ", repeat ", s->repeat,
        ", skip_first ", s->skip_first);
  }
  step_start_ = detail::profile_clock();
  begin(options_.schedule ? profiler_action(*options_.schedule, 0) : ProfilerAction::kRecord);
}

Profiler::~Profiler() {
  if (!stopped_) {
    options_.on_trace_ready = nullptr;  // may throw
    stop();
  }
}

bool Profiler::recording() const {
  return action_ == ProfilerAction::kRecord || action_ == ProfilerAction::kRecordAndSave;
}

void Profiler::begin(ProfilerAction action) {
  const bool was_recording = recording();
  action_ = action;
  if (action == ProfilerAction::kNone) {
    recorder_.reset();
    return;
  }
  // What the warm-up wrote down is thrown away.
  if (recorder_ && (was_recording || !recording())) return;
  recorder_.reset();
  recorder_ = std::make_unique<detail::ProfileRecorder>(options_);
}

void Profiler::step() {
  if (stopped_) return;
  const int64_t now = detail::profile_clock();
  if (recording()) steps_.push_back({step_, step_start_, now});
  if (action_ == ProfilerAction::kRecordAndSave) finish();
  ++step_;
  if (options_.schedule) begin(profiler_action(*options_.schedule, step_));
  step_start_ = detail::profile_clock();
}

void Profiler::stop() {
  if (stopped_) return;
  stopped_ = true;
  // A cycle without a step is only what follows the last complete one, which people want to read.
  const bool begun = !options_.schedule || !steps_.empty() || profile_.end == 0;
  if (recording() && begun) finish();
  recorder_.reset();
  action_ = ProfilerAction::kNone;
}

void Profiler::finish() {
  profile_ = recorder_->take();
  recorder_.reset();
  action_ = ProfilerAction::kNone;
  profile_.steps = std::exchange(steps_, {});
  if (options_.on_trace_ready) options_.on_trace_ready(*this);
}

void FlopCounter::kernel(const KernelWork& work) {
  if (work.flops > 0) flops_.fetch_add(work.flops, std::memory_order_relaxed);
}

}  // namespace tarn
