// init.h - from a launcher's environment to the group of all ranks.
#pragma once

#include <memory>
#include <string>

#include "tarn/dist/environment.h"
#include "tarn/dist/group.h"
#include "tarn/dist/store.h"

namespace tarn::dist {

struct InitOptions {
  GroupOptions group = {};
  /// "host": shared memory, where all ranks are processes of one host; "gloo": sockets; "nccl":
  /// between GPUs, and tensors of the CPU by host or gloo; "auto": nccl if `device` is a GPU, else
  /// host if it can be, else gloo. TARN_DIST_TRANSPORT wins over "auto".
  std::string transport = "auto";
  /// Where this rank's tensors are. The CPU with transport nccl: the GPU of its number on this
  /// host.
  Device device = kCPU;
  /// Where the ranks meet: "env://" (MASTER_ADDR and MASTER_PORT) or "file:///folder", which all
  /// ranks see and which is new for every run.
  std::string meet = "env://";
};

/// The group of all ranks. A world of one needs neither Gloo nor a port. Throws what
/// read_environment(), TcpStore, make_gloo_group and make_nccl_group throw.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});
std::shared_ptr<ProcessGroup> init_process_group(const Environment& environment,
                                                 const InitOptions& options);

/// `transport` of InitOptions, or what TARN_DIST_TRANSPORT has in place of "auto". Throws
/// ValueError for one that there is not.
std::string chosen_transport(const std::string& transport);

/// The store that this environment's ranks meet in.
std::shared_ptr<Store> make_store(const Environment& environment, const InitOptions& options);

}  // namespace tarn::dist
