// ranks.h - the ranks that run a trainer together: who prints, who saves, what they agree on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tarn/apps/common/options.h"
#include "tarn/core/device.h"
#include "tarn/core/random.h"
#include "tarn/dist/group.h"

namespace tarn::apps {

/// Where ranks leave word of their run folder, in the folder of tarn-run's logs.
inline constexpr const char* kRunFolderNote = "run-folder.txt";

/// The flags of trainers that run on several ranks or devices.
struct RankSettings {
  std::string parallel = "auto";   ///< "auto": ddp where a launcher started several ranks
  double timeout = 60;             ///< seconds of any wait between ranks
  double bucket_cap_mb = 25;       ///< of ddp and of ZeRO
  int64_t zero_stage = 0;          ///< of dist::ZeroDataParallel; 0: ddp
  int64_t replicas = 0;            ///< of dp; 0: one for each GPU
  int64_t rebalance = 0;           ///< steps between new shares by speed; 0: equal shares
  std::string transport = "auto";  ///< of dist::InitOptions
};
void declare_rank_flags(Options& options, RankSettings& settings);
/// What a run was started with that another start, or a process alone, need not repeat: before
/// Ranks::join.
void forget_launch(RankSettings& settings, const Options& options);

class Ranks;
/// Throws UsageError where flags ask for several ranks and there is one, or do not go together. A
/// --zero-stage that one process takes over from a run of several becomes 0.
void check_rank_flags(RankSettings& settings, const Ranks& ranks, const Options& options);

/// The devices of --parallel dp, the first of which is --device; none if it is not asked for.
/// Throws UsageError where there are fewer than --replicas, or where it is not clear how many.
std::vector<Device> replica_devices(const RankSettings& settings, Device device);
/// "3 replicas on cuda:0, cuda:1, cuda:2", for the line a program starts with.
std::string replicas_title(const std::vector<Device>& devices);

/// What --lr-base-size does: --lr is meant for steps of so many items (0: for any), and grows with
/// their number.
inline double scaled_lr(double lr, int64_t items, int64_t base) {
  return base > 0 ? lr * static_cast<double>(items) / static_cast<double>(base) : lr;
}

/// One rank of a run. Alone, it needs no launcher, and every agreement is its own opinion.
class Ranks {
 public:
  /// This process alone.
  Ranks() = default;
  /// What the launcher's environment says. Gives kernels this rank's share of the cores, unless
  /// OMP_NUM_THREADS says how many. device: as --device has it; of several ranks, each gets a GPU
  /// of its own for "cuda" (they talk over NCCL then), and for "auto" where there are enough; else
  /// the CPU. Throws UsageError where --parallel and the environment differ.
  static Ranks join(const RankSettings& settings, std::string& device);

  int rank() const { return group_ ? group_->rank() : 0; }
  int size() const { return group_ ? group_->size() : 1; }
  /// The rank that prints and saves.
  bool main() const { return rank() == 0; }
  /// Null for a process alone.
  dist::ProcessGroup* group() const { return group_.get(); }

  /// This rank's part of a number that all ranks share. Throws UsageError unless they divide it.
  int64_t share(int64_t whole, const char* flag) const;
  /// Sums over all ranks, the same on each.
  std::vector<double> sum(std::vector<double> values) const;
  /// Every rank's text, in rank order.
  std::vector<std::string> from_all(const std::string& text) const;
  /// The main rank's text, on every rank.
  std::string from_main(const std::string& text) const;
  /// From here on each rank's default generator gives numbers of its own (dropout draws another
  /// mask for each rank's rows); the main rank's are those of a process alone. Once the ranks have
  /// made the same initial weights.
  void draw_apart() const;
  /// What draw_apart() makes of a state that all ranks have.
  PhiloxState apart(PhiloxState common) const;
  /// The run folder that the job used before tarn-run started it anew, if a checkpoint is in it; ""
  /// else. Same on every rank.
  std::string restarted_run() const;
  /// Leaves word of the run folder for restarted_run(). For the main rank.
  static void remember_run(const std::string& folder);
  /// True if it is on any rank.
  bool any(bool value) const { return sum({value ? 1.0 : 0.0})[0] > 0; }

 private:
  std::shared_ptr<dist::ProcessGroup> group_;
};

}  // namespace tarn::apps
