// data_parallel.h - DataParallel: one process, one replica of a module per device.
//
//   Net net;                                                   // on devices[0]: the master
//   DataParallel parallel(net, {cuda0, cuda1}, [] { return std::make_unique<Net>(); });
//   loss_of(parallel(x), target).backward();                   // gradients arrive in net
//
// Each forward copies the master's values to the replicas, cuts x by rows, runs the replicas in
// threads of their own and joins their results on devices[0]; so the loss is that of the whole
// batch however it was cut. Every step moves all parameters, and the master's device holds the
// joined results as well: DistributedDataParallel with a process per device is faster and evener in
// memory. This is for the case that there must be one process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tarn/nn/module.h"

namespace tarn::dist {

/// Not thread-safe.
class DataParallel {
 public:
  using Factory = std::function<std::unique_ptr<nn::Module>()>;
  /// `module` is on devices[0] and outlives this; make_replica builds the others, alike. shares:
  /// how many rows each device takes, relative to each other; empty: equal shares of ceil(N /
  /// devices) rows, the last ones fewer or none. Throws ValueError unless the replicas are like the
  /// module.
  DataParallel(nn::Module& module, std::vector<Device> devices, const Factory& make_replica,
               std::vector<double> shares = {});
  DataParallel(const DataParallel&) = delete;

  /// x: [N, ...] on any device. Returns [N, ...] on devices[0]. Training mode follows the module's.
  /// Buffers that a forward moves (running statistics) are those of devices[0]'s rows. Throws what
  /// the first of the replicas throws.
  Tensor operator()(const Tensor& x);
  nn::Module& module() { return module_; }

  /// Rows for each device; their sum is `rows`.
  static std::vector<int64_t> cut(int64_t rows, int64_t devices, const std::vector<double>& shares);

 private:
  struct Replica {
    nn::Module* module = nullptr;
    std::unique_ptr<nn::Module> own;  // none for the master
    Device device;
    std::vector<Tensor> params, buffers;
  };

  void copy_values();
  void gradient_arrived();
  void add_gradients();

  nn::Module& module_;
  std::vector<Replica> replicas_;
  std::vector<double> shares_;
  bool asked_ = false;  // for the end of the backward under way
};

}  // namespace tarn::dist
