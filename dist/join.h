// join.h - Join: ranks with different numbers of batches.
//
//   Join join(ddp);
//   for (const Batch& batch : mine) step(batch);   // as many as this rank has
//   join.finish();                                  // takes part in the others' steps
//
// A rank that has finished answers the collectives of the others: it adds zeros to their gradients.
// Each forward that sends buffers and each backward that synchronises begin with a small collective
// in which all say what they do.
#pragma once

#include <cstdint>
#include <vector>

#include "tarn/dist/ddp.h"

namespace tarn::dist {

struct JoinOptions {
  /// Gradients are divided by the number of all ranks, so that every row weighs the same to the
  /// end; false: by the number of those that still have batches.
  bool divide_by_initial_world_size = true;
  /// Instead of going on without a rank, all throw DistError that names those that have finished.
  bool throw_on_early_termination = false;
};

/// All ranks make one, at the same point; it begins and ends a count of steps of its own for
/// DdpOptions::check_every, whose checks pause while a rank has finished. With static_graph, the
/// parameters are those of the first backward in which no rank had finished. Other collectives in
/// the loop (SyncBatchNorm, sums of losses) are not answered. Not thread-safe.
class Join {
 public:
  explicit Join(DistributedDataParallel& ddp, JoinOptions options = {});
  /// Without finish(), as by an exception: only lets go of ddp.
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// Returns when all ranks have finished. Parameters and buffers are then, on every rank, those of
  /// the rank that made the most forwards in training, under no_sync() as well: it went on to the
  /// end. Gradients of a rank that finished early are dropped, and its optimizer has seen fewer
  /// steps.
  void finish();

 private:
  friend class DistributedDataParallel;
  enum Event : int64_t { kFinished, kForward, kBackward };

  void count_forward() { ++forwards_; }
  void before_forward() { exchange(kForward); }
  /// The rank whose buffers count.
  int root() const { return going_[0]; }
  /// What averages are multiplied by.
  double before_backward();
  /// Nobody has finished.
  bool complete() const { return static_cast<int>(going_.size()) == ddp_.group_.size(); }
  /// Tells all ranks, and what they tell; returns the event of those that have not finished.
  Event exchange(Event mine);
  /// A number of each rank.
  std::vector<int64_t> gather(int64_t mine);
  int last_rank();
  void detach();

  DistributedDataParallel& ddp_;
  JoinOptions options_;
  std::vector<int> going_;  // ranks that had batches at the last exchange, in order
  int64_t forwards_ = 0;
};

}  // namespace tarn::dist
