// dnn_plan.h - cuDNN operation graphs in general, and the plans that execute them.
#pragma once

#include <vector>

#include "tarn/core/dtype.h"
#include "tarn/cuda/dnn_api.h"

namespace tarn::cuda {

/// f32, f16 or bf16.
cudnnDataType_t data_type(DType dtype);

/// The GPU that plans are for: present, behind a handle; or described, for checks without one
/// (cuDNN 9.8 and later).
struct DnnTarget {
  cudnnHandle_t handle = nullptr;
  const DnnDescriptor* described = nullptr;
};

/// A finished operation graph and the descriptors it refers to.
struct DnnGraph {
  std::vector<DnnDescriptor> parts;
  DnnDescriptor graph;
};
/// The graph of finalized operations; `parts` are the tensors and modes they refer to. Throws
/// DnnError if cuDNN does not accept it.
DnnGraph finish_graph(std::vector<DnnDescriptor> parts, std::vector<DnnDescriptor> operations,
                      const DnnTarget& target);

/// What engines may do to the numbers. Sums are in f32 always.
struct DnnNumerics {
  DType dtype = DType::kF32;  ///< of the operands
  bool tf32 = false;          ///< f32: inputs may be rounded to TF32
  bool deterministic = true;  ///< the same bits on every run
};

struct DnnPlan {
  DnnDescriptor config, plan;
  int64_t workspace = 0;  ///< bytes
  int64_t engine = -1;    ///< cuDNN's number of the algorithm
};
/// Up to `most` plans for the graph, by cuDNN's heuristics the fastest first; only such as do what
/// `want` allows and need at most `workspace` bytes. Empty if there is none.
std::vector<DnnPlan> make_plans(const DnnGraph& graph, const DnnNumerics& want,
                                const DnnTarget& target, int64_t workspace, size_t most);

}  // namespace tarn::cuda
