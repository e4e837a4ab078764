// ranks.cpp - the ranks that run a trainer together.
#include "tarn/apps/common/ranks.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tarn/apps/common/device_choice.h"
#include "tarn/core/backend.h"
#include "tarn/core/checkpoint_manager.h"
#include "tarn/core/factory.h"
#include "tarn/core/parallel.h"
#include "tarn/dist/agree.h"
#include "tarn/dist/init.h"
#include "tarn/dist/nccl_group.h"

namespace tarn::apps {

void declare_rank_flags(Options& options, RankSettings& s) {
  options.group("Ranks (tarn-run, torchrun, mpirun, srun)");
  options
      .add("--parallel", &s.parallel,
           "ddp: a replica per rank (process), gradients averaged; dp: one process, a replica per "
           "GPU; none; auto: ddp if there are several ranks")
      .choices({"auto", "ddp", "dp", "none"});
  options
      .add("--dist-timeout", &s.timeout,
           "seconds a rank waits for another before it fails; five times that at the start")
      .above(0)
      .at_most(1e9);  // the clock's nanoseconds have 64 bits
  options.add("--bucket-cap-mb", &s.bucket_cap_mb, "ddp: MiB of gradients that travel together")
      .above(0);
  options
      .add("-z, --zero-stage", &s.zero_stage,
           "what a rank keeps only its part of: 1: the optimizer's state, 2: gradients too, 3: "
           "parameters too (but while samples and checkpoints are written and images tested: then "
           "each rank holds the whole model); 0: of nothing (ddp). Losses are the same")
      .range(0, 3);
  options
      .add("--replicas", &s.replicas,
           "dp: how many GPUs, from --device on; on the cpu, how many threads with a replica each")
      .range(0, 64)
      .default_text("all GPUs");
  options
      .add("--rebalance", &s.rebalance,
           "every so many steps, cut the batch anew by the measured speeds of the ranks, or of the "
           "replicas of dp; 0: in equal parts")
      .at_least(0);
}

void forget_launch(RankSettings& s, const Options& options) {
  if (s.parallel == "ddp" && !options.given("--parallel")) s.parallel = "auto";
  if (s.parallel != "dp" && !options.given("--replicas")) s.replicas = 0;
}

void check_rank_flags(RankSettings& s, const Ranks& ranks, const Options& options) {
  const bool alone = ranks.size() == 1 && s.parallel != "dp";
  // What a run that several ranks began left in its settings is not asked of a process alone.
  if (alone && !options.given("--rebalance")) s.rebalance = 0;
  if (alone && s.rebalance > 0) {
    throw UsageError("--rebalance needs parts to share the batch: several ranks, or --parallel dp");
  }
  if (ranks.size() == 1 && !options.given("--zero-stage")) s.zero_stage = 0;
  if (s.zero_stage == 0) return;
  const std::string stage = "--zero-stage " + std::to_string(s.zero_stage);
  if (ranks.size() == 1) {
    throw UsageError(stage +
                     " shares the training state of several ranks; try tarn-run --nproc 2 " +
                     options.program() + " ...");
  }
  if (s.rebalance > 0) throw UsageError("--rebalance measures ranks of --zero-stage 0");
}

std::vector<Device> replica_devices(const RankSettings& s, Device device) {
  if (s.parallel != "dp") {
    if (s.replicas == 0) return {};
    throw UsageError("--replicas is of --parallel dp; pass both");
  }
  if (device.is_cpu()) {
    if (s.replicas > 0) return std::vector<Device>(static_cast<size_t>(s.replicas), device);
    throw UsageError(
        "--parallel dp: the cpu is one device; pass --replicas N for N replicas in threads of it, "
        "or start processes: tarn-run --nproc N ...");
  }
  const int there = backend(device.type).device_count() - device.index;
  if (s.replicas > there) {
    throw UsageError("--replicas " + std::to_string(s.replicas) + ": this machine has " +
                     std::to_string(there) + (there == 1 ? " GPU" : " GPUs") + " from " +
                     device.str() + " on");
  }
  std::vector<Device> devices;
  const int count = s.replicas > 0 ? static_cast<int>(s.replicas) : there;
  for (int i = 0; i < count; ++i) devices.emplace_back(device.type, device.index + i);
  return devices;
}

std::string replicas_title(const std::vector<Device>& devices) {
  std::string text = std::to_string(devices.size()) + " replicas on ";
  for (size_t i = 0; i < devices.size(); ++i) text += (i ? ", " : "") + devices[i].str();
  return text;
}

namespace {

// "cuda" is this rank's own GPU; "auto" too, where every rank can have one.
std::string own_device(const std::string& device, const dist::Environment& e,
                       const std::string& transport) {
  const std::string own = Device(DeviceType::kCUDA, e.local_rank).str();
  if (device == "cuda" || device == "cuda:0") return own;
  if (device != "auto") return device;
  const bool wanted = transport == "nccl" || (transport == "auto" && has_real_gpu());
  const bool possible =
      dist::why_no_nccl().empty() && e.local_size <= backend(DeviceType::kCUDA).device_count();
  return wanted && possible ? own : "cpu";
}

}  // namespace

Ranks Ranks::join(const RankSettings& s, std::string& device) {
  Ranks ranks;
  if (s.parallel == "none") return ranks;
  const dist::Environment e = dist::read_environment();
  if (s.parallel == "dp") {
    if (e.size == 1) return ranks;
    throw UsageError("--parallel dp is one process with several devices, but " +
                     std::to_string(e.size) +
                     " ranks were started; pass --parallel ddp, or start "
                     "one");
  }
  if (e.size == 1) {
    if (s.parallel == "ddp" && e.launcher == "none") {
      throw UsageError(
          "--parallel ddp: no launcher started this process; try tarn-run --nproc 2 ...");
    }
    return ranks;
  }
  if (!std::getenv("OMP_NUM_THREADS")) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    set_num_threads(std::max(1, cores / e.local_size));
  }
  const dist::Millis timeout(static_cast<int64_t>(s.timeout * 1000));
  device = own_device(device, e, dist::chosen_transport(s.transport));
  ranks.group_ =
      dist::init_process_group(e, {.group = {.timeout = timeout, .start_timeout = 5 * timeout},
                                   .transport = s.transport,
                                   .device = Device(device)});
  return ranks;
}

int64_t Ranks::share(int64_t whole, const char* flag) const {
  if (whole % size() != 0) {
    throw UsageError(std::string(flag) + " " + std::to_string(whole) +
                     " is shared by all ranks: it must be a multiple of their number, " +
                     std::to_string(size()));
  }
  return whole / size();
}

std::vector<std::string> Ranks::from_all(const std::string& text) const {
  return group_ ? dist::all_gather_text(*group_, text) : std::vector<std::string>{text};
}

std::string Ranks::from_main(const std::string& text) const {
  return from_all(main() ? text : "")[0];
}

PhiloxState Ranks::apart(PhiloxState common) const {
  common.seed += static_cast<uint64_t>(rank());
  return common;
}

void Ranks::draw_apart() const {
  default_generator().set_state(apart(default_generator().state()));
}

namespace {

// Kept by tarn-run from one start of the job to the next.
std::string note_path() {
  const char* folder = std::getenv("TARN_FLIGHT_DIR");
  return folder ? std::string(folder) + "/" + kRunFolderNote : "";
}

}  // namespace

void Ranks::remember_run(const std::string& folder) {
  const std::string note = note_path();
  if (note.empty()) return;
  // Whole or not there: a rank may be killed meanwhile.
  std::ofstream(note + ".new") << std::filesystem::absolute(folder).string();
  std::error_code error;  // then a restart starts anew
  std::filesystem::rename(note + ".new", note, error);
}

std::string Ranks::restarted_run() const {
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  std::string folder;
  if (main() && count && std::atoi(count) > 0 && !note_path().empty()) {
    std::getline(std::ifstream(note_path()), folder);
    if (CheckpointManager(folder + "/checkpoints").steps().empty()) folder.clear();
  }
  return from_main(folder);
}

std::vector<double> Ranks::sum(std::vector<double> values) const {
  if (!group_) return values;
  const Tensor x = from_vector(values, {static_cast<int64_t>(values.size())});
  group_->all_reduce(x)->wait();
  return x.to_vector<double>();
}

}  // namespace tarn::apps
