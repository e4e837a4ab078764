// ddp.h - DistributedDataParallel: one replica per rank, gradients averaged during backward.
//
//   auto group = init_process_group();
//   Net net;
//   DistributedDataParallel ddp(net, *group);
//   for (...) {
//     optimizer.zero_grad();
//     loss_of(net(x), target).backward();   // gradients are now the average over the ranks
//     optimizer.step();                     // and so all replicas stay equal, bit for bit
//   }
//
// The module is used as before, under its own names: ddp works through hooks.
#pragma once

#include <memory>
#include <utility>

#include "tarn/dist/group.h"
#include "tarn/dist/no_sync.h"
#include "tarn/dist/reducer.h"
#include "tarn/nn/module.h"

namespace tarn::dist {

struct DdpOptions {
  /// MiB of gradients that travel together, in the order in which they come: at most bucket_cap_mb,
  /// and no more than an eighth of all (or first_bucket_mb). The first and the last to come have
  /// buckets of their own, up to first_bucket_mb and last_bucket_mb whatever the others hold, so
  /// that sending begins early and little is left to send when backward is over (last_bucket_mb =
  /// 0: none for the last).
  double bucket_cap_mb = 25, first_bucket_mb = 1, last_bucket_mb = 1;
  /// Parameters may go without a gradient in a backward, on some or all ranks. Those that no rank
  /// used keep none. Costs a small collective per backward.
  bool find_unused_parameters = false;
  /// Every backward uses the parameters that the first one used on this rank: what it did not is
  /// known from then on, without a collective and without waiting for the end of backward. Another
  /// backward is an error that names the parameters.
  bool static_graph = false;
  bool broadcast_buffers = true;  ///< rank 0's, before each forward in training
  bool overlap = true;            ///< communicate during backward
  int64_t check_every = 0;        ///< steps between checks that the replicas are equal; 0: never
};

class Join;

/// Works with frozen and shared parameters, several forwards before a backward, recomputation and
/// gradient accumulation. Every rank runs the same number of backwards, or uses Join (join.h). Not
/// thread-safe.
class DistributedDataParallel {
 public:
  /// All ranks call it. Throws ValueError, on all ranks, that names the first parameter or buffer
  /// which differs in name, size or dtype; then gives everyone rank 0's values. Throws DeviceError
  /// if this rank's module is spread over several devices, ValueError if another of these, or a
  /// ZeroDataParallel, has one of its parameters. module and group outlive it.
  DistributedDataParallel(nn::Module& module, ProcessGroup& group, DdpOptions options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;

  Tensor operator()(const Tensor& x) { return module_(x); }
  nn::Module& module() { return module_; }
  ProcessGroup& group() { return group_; }

  /// While the guard lives, backward only adds up on this rank; the first one after it sends all.
  using NoSync = dist::NoSync<Reducer>;
  [[nodiscard]] NoSync no_sync() { return NoSync(reducer_); }

  /// Replaces the average of buckets by another way to it (compression). Same on all ranks.
  void register_comm_hook(CommHook hook) { reducer_.set_comm_hook(std::move(hook)); }
  /// Of the last backward.
  ReducerStats stats() const { return reducer_.stats(); }
  /// Throws DistError that names the first tensor in which the replicas differ.
  void check_replicas();

 private:
  friend class Join;
  void before_forward();
  bool shares_buffers() const { return options_.broadcast_buffers && !buffers_.empty(); }

  nn::Module& module_;
  ProcessGroup& group_;
  DdpOptions options_;
  std::vector<Tensor> buffers_;
  Reducer reducer_;
  Join* join_ = nullptr;
  int64_t hook_ = 0, steps_ = 0;
};

/// Buckets travel as bf16 or f16: half the bytes, rounded once on each side; sums in f32.
CommHook compress_hook(DType dtype);

}  // namespace tarn::dist
