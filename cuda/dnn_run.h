// dnn_run.h - executes cuDNN graphs: handles, the cache of plans, workspaces, autotuning.
#pragma once

#include <span>
#include <variant>

#include "tarn/cuda/dnn_attention_graph.h"
#include "tarn/cuda/dnn_graph.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {

/// All that cuDNN is used for.
using DnnProblem = std::variant<DnnConv, DnnAttention>;

/// Where an operand of the graph is.
struct DnnBinding {
  int64_t id;
  void* pointer;
};

/// Queues the work, with the plan that was made for its like before or a new one. False if cuDNN
/// has none: nothing was done. Throws DnnError that names operation and shapes.
bool run_dnn(const DnnProblem& problem, std::span<const DnnBinding> operands, Stream stream);

}  // namespace tarn::cuda
