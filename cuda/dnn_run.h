// dnn_run.h - executes convolutions by cuDNN: handles, the cache of plans, workspaces, autotuning.
#pragma once

#include "tarn/cuda/dnn_graph.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {

struct DnnOperands {
  void* x = nullptr;
  void* weight = nullptr;  ///< [K, R, S, CG]
  void* y = nullptr;
  void* bias = nullptr;  ///< with DnnConv::bias
};

/// Queues the convolution, with the plan that was made for its like before or a new one. False if
/// cuDNN has none: nothing was done. Throws DnnError that names the convolution.
bool run_dnn_conv(const DnnConv& conv, const DnnOperands& operands, Stream stream);

}  // namespace tarn::cuda
