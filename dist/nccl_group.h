// nccl_group.h - ranks on GPUs, over NCCL.
//
//   auto group = make_nccl_group(store, rank, size, {.device = Device("cuda:1"), .cpu =
//   cpu_group});
//
// Collectives run on a stream of the group's own and begin when what was queued on the caller's
// current stream is done. Work::wait() returns at once and makes the current stream wait (after a
// barrier, the host waits too); wait(limit) and test() look from the host. So an error that comes
// later is thrown by the next call on the group, or by waits under TARN_NCCL_BLOCKING_WAIT=1.
//
// Sums have NCCL's order: the same bits on all ranks, but not those of other transports, nor of
// other bucket sizes. Messages between two ranks have a communicator for each direction and tag,
// made at the first message, so none waits for another.
#pragma once

#include <memory>

#include "tarn/dist/group.h"
#include "tarn/dist/store.h"

namespace tarn::dist {

struct NcclOptions {
  GroupOptions group = {};
  Device device = Device(DeviceType::kCUDA, 0);  ///< this rank's GPU, no other rank's
  /// Moves tensors of the CPU; null: nobody does. Shares the group's fate. Its name is another one,
  /// which tells its records from this group's.
  std::shared_ptr<ProcessGroup> cpu = nullptr;
  /// wait() keeps the host until the collective is done, and throws what went wrong.
  bool blocking_wait = false;
  /// Before each collective or message, the ranks compare what they call, through the store. NCCL
  /// itself mixes up calls that look alike to it, and hangs on others until the limit. For finding
  /// a fault: each costs a few requests to the store. TARN_NCCL_CHECK_CALLS=1 does the same.
  bool check_calls = false;
};

/// Why there is no NCCL here, as one sentence; "" if there is: a build without it, no GPU, no
/// library.
std::string why_no_nccl();

/// All ranks call it with their part of the same store. Throws UnsupportedError (why_no_nccl),
/// DeviceError that names the ranks which share a GPU, TimeoutError that names those which did not
/// come.
std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Store> store, int rank, int size,
                                              NcclOptions options);

}  // namespace tarn::dist
