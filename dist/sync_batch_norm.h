// sync_batch_norm.h - batch normalisation with the statistics of all ranks' batches together.
//
//   convert_sync_batch_norm(net, group);   // before DistributedDataParallel
//
// With it, N ranks with a share of a batch each compute what one process computes with all of it.
#pragma once

#include <memory>

#include "tarn/autograd/functions_norm.h"
#include "tarn/dist/group.h"
#include "tarn/nn/module.h"

namespace tarn::dist {

/// act(batch_norm(x) + residual) as batch_norm_act in training, over the ranks of a group; ranks
/// may have batches of different sizes, also none. Statistics of ranks are merged by their counts.
///   forward:  every rank's count, mean and variance (2 C + 1 numbers)
///   backward: the sums of gy and gy * xhat (2 C numbers), from which
///             gx = rstd w (gy - mean(gy) - xhat mean(gy xhat)), means over all ranks
/// The gradients of weight and bias stay this rank's own: DDP averages them. All ranks call it, and
/// run its backward, in the same order; what backward needs holds the group until then. Gradients
/// of gradients (create_graph, on all ranks) are those of the ranks' losses together. Throws
/// ValueError, on all ranks, if a channel has one value in all.
Tensor sync_batch_norm(ProcessGroup& group, const Tensor& x, const Tensor& residual,
                       const Tensor& running_mean, const Tensor& running_var, const Tensor& weight,
                       const Tensor& bias, const BatchNormOptions& options);

/// Makes every nn::BatchNorm below (and including) `module` use it in training. Its messages have a
/// group of their own, so that they do not wait behind DDP's buckets. All ranks call it. Returns
/// how many there are.
int convert_sync_batch_norm(nn::Module& module, ProcessGroup& group);

}  // namespace tarn::dist
