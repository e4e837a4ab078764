// hooks.h - ways to average gradients with fewer bytes, for DistributedDataParallel.
//
//   ddp.register_comm_hook(powersgd_hook({.rank = 4}));
//
// Both are lossy and keep what they left out for the next step (error feedback), so that it is late
// and not lost. NaN and infinity reach the average (a GradScaler skips the step then), and are not
// kept. All ranks register the same hook; a hook object belongs to one DDP. What it keeps is in no
// checkpoint: a resumed run starts with nothing left out.
#pragma once

#include <cstdint>

#include "tarn/dist/reducer.h"

namespace tarn::dist {

/// Sends the share of each bucket's values that are largest by magnitude: 12 bytes each (index and
/// value) instead of 4 bytes for all. share is in (0, 1]; 1 is exact. Throws ValueError otherwise,
/// DTypeError for buckets that are not f32.
/// Source: Aji and Heafield 2017, arXiv:1704.05021.
CommHook top_k_hook(double share);

struct PowerSgdOptions {
  int64_t rank = 4;   ///< of the approximation: n m values become rank (n + m)
  uint64_t seed = 0;  ///< of the first guess
};
/// Approximates each gradient matrix (a parameter as [first size, all others]) by one power
/// iteration, started from the last step's result: P = M Q, averaged and orthogonalised; Q = M^T P,
/// averaged; M ~ P Q^T. Exact where the average's rank is no larger. Parameters too small to gain
/// are averaged as they are. Throws ValueError for a rank below 1, DTypeError for buckets not f32.
/// Source: Vogels et al. 2019, arXiv:1905.13727.
CommHook powersgd_hook(const PowerSgdOptions& options = {});

}  // namespace tarn::dist
