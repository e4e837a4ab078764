// data_parallel.h - DataParallel: one process, one replica of a module per device.
//
//   Net net;                                                   // on devices[0]: the master
//   DataParallel parallel(net, {cuda0, cuda1}, [] { return std::make_unique<Net>(); });
//   loss_of(parallel(x), target).backward();                   // gradients arrive in net
//
// Each forward copies what changed of the master's values to the replicas, cuts x by rows, runs the
// replicas in threads of their own and joins their results on devices[0]; so the loss is that of
// the whole batch however it was cut. Every step moves all parameters, and the master's device
// holds the joined results as well: DistributedDataParallel with a process per device is faster and
// evener in memory. This is for the case that there must be one process.
//
// A loss that is computed by the replicas leaves less to devices[0] than their results would:
//   parallel.mean_of([](nn::Module& net, std::span<const Tensor> part) {
//     return mse_loss(net(part[0]), part[1]);
//   }, {x, target}).backward();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tarn/dist/balance.h"
#include "tarn/nn/module.h"

namespace tarn::dist {

/// The replicas' threads have the caller's modes (thread_modes.h) and current streams. Random
/// layers draw from the one default generator in the order in which the replicas come to it, so
/// dropout differs from run to run. Not thread-safe.
class DataParallel {
 public:
  using Factory = std::function<std::unique_ptr<nn::Module>()>;
  /// What a replica does with its rows of the inputs; runs in a thread of its own.
  using Call = std::function<Tensor(nn::Module& replica, std::span<const Tensor> parts)>;

  /// `module` is on devices[0] and outlives this; make_replica builds the others, alike (what it
  /// draws from the default generator is put back). shares: how many rows each device takes,
  /// relative to each other; empty: equal shares of ceil(N / devices) rows, the last ones fewer or
  /// none. rebalance_every: steps after which the shares become the speeds measured since, so that
  /// unequal devices take equally long; 0: they stay. Throws ValueError unless the replicas are
  /// like the module.
  DataParallel(nn::Module& module, std::vector<Device> devices, const Factory& make_replica,
               std::vector<double> shares = {}, int64_t rebalance_every = 0);
  DataParallel(const DataParallel&) = delete;

  /// x: [N, ...] on any device. Returns [N, ...] on devices[0]. Training mode follows the module's.
  /// Values that were written through data() are seen after bump_version() only. Buffers that a
  /// forward moves (running statistics) are those of devices[0]'s rows. Throws what
  /// the first of the replicas throws.
  Tensor operator()(const Tensor& x);
  /// The same for any call and several inputs, all [N, ...], which are cut alike. Scalars come back
  /// as a vector: one for each device that had rows, in the order of devices.
  Tensor apply(const Call& call, const std::vector<Tensor>& inputs);
  /// For calls that return the mean over their rows: the mean over all rows, each device's weighed
  /// by how many it had. Throws ShapeError if a call returns no scalar.
  Tensor mean_of(const Call& call, const std::vector<Tensor>& inputs);

  nn::Module& module() { return module_; }
  /// How many rows each device had in the last call.
  const std::vector<int64_t>& rows() const { return rows_; }
  /// Time spent on copying values to the replicas in the last call, and gradients back since.
  double copy_seconds() const { return copy_seconds_; }

  /// Rows for each device; their sum is `rows`.
  static std::vector<int64_t> cut(int64_t rows, int64_t devices, const std::vector<double>& shares);

 private:
  // Of the master's tensor and the replica's after a copy; none: not copied yet.
  struct Versions {
    // The master's, which may get another. Held: what comes after it must not lie at its address.
    Ref<Storage> storage = nullptr;
    uint32_t master = 0, replica = 0;
  };
  struct Replica {
    nn::Module* module = nullptr;
    std::unique_ptr<nn::Module> own;  // none for the master
    Device device;
    std::vector<Tensor> params, buffers;
    std::vector<Versions> copied;  // of params, then buffers
  };

  std::vector<int64_t> share_out(int64_t rows) const;
  std::vector<Tensor> run(const Call& call, const std::vector<Tensor>& inputs);
  void run_replicas(const Call& call, const std::vector<std::vector<Tensor>>& parts,
                    std::vector<Tensor>& results);
  void copy_values();
  static void refresh(const Tensor& to, const Tensor& from, Versions& last);
  void gradient_arrived();
  void add_gradients();

  nn::Module& module_;
  std::vector<Replica> replicas_;
  std::vector<double> shares_;
  std::optional<Balancer> balancer_;
  std::vector<int64_t> rows_;
  double copy_seconds_ = 0;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  std::weak_ptr<int> pass_;  // lives as long as the backward under way, which may end by throwing
};

}  // namespace tarn::dist
