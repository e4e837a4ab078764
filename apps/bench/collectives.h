// collectives.h - times collectives over message sizes, as nccl-tests prints them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tarn/dist/group.h"

namespace tarn::bench {

struct CollectiveSettings {
  std::string filter;                           ///< only operations whose name contains this
  int64_t min_bytes = 8, max_bytes = 26214400;  ///< 25 MiB: a bucket of DDP
  Device device = kCPU;                         ///< of this rank's tensors
};

struct CollectiveResult {
  std::string name;
  int64_t bytes = 0;  ///< of the largest tensor
  double seconds = 0;
  double algbw = 0;  ///< bytes / seconds, GB/s
  double busbw = 0;  ///< what each rank's link carries: algbw * 2 (W-1)/W for all_reduce ...
};

/// For check_filter.
std::vector<std::string> collective_names();

/// Every rank calls it; `report` gets each result (the slowest rank's time), on rank 0. Values are
/// checked before anything is timed. Throws Error if one is wrong.
void bench_collectives(dist::ProcessGroup& group, const CollectiveSettings& settings,
                       const std::function<void(const CollectiveResult&)>& report);

}  // namespace tarn::bench
