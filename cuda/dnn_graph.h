// dnn_graph.h - convolutions as cuDNN operation graphs, and the plans that execute them.
#pragma once

#include <compare>
#include <vector>

#include "tarn/core/dtype.h"
#include "tarn/cuda/conv_shape.h"
#include "tarn/cuda/dnn_api.h"

namespace tarn::cuda {

enum class ConvPass : uint8_t { kForward, kBackwardData, kBackwardWeight };

/// What a plan is made for. Images are dense [N, H, W, C], filters dense [K, R, S, CG].
struct DnnConv {
  ConvPass pass = ConvPass::kForward;
  DType dtype = DType::kF32;  ///< f32, f16 or bf16; sums in f32
  bool bias = false;          ///< forward: y = conv(x, w) + bias
  bool tf32 = false;          ///< f32: inputs may be rounded to TF32
  bool deterministic = true;  ///< the same bits on every run
  int device = 0;
  int64_t alignment = 16;  ///< of every operand, in bytes
  ConvShape shape;

  auto operator<=>(const DnnConv&) const = default;
  /// "forward, bf16, x=[8, 64, 32, 32], weight=[...], stride=[1, 1], ...".
  std::string describe() const;
};

/// Names of the operands in a graph and its variant pack.
enum DnnOperand : int64_t { kDnnX = 1, kDnnWeight, kDnnY, kDnnBias, kDnnSum };

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
/// Throws DnnError if cuDNN does not accept it.
DnnGraph make_graph(const DnnConv& conv, const DnnTarget& target);

struct DnnPlan {
  DnnDescriptor config, plan;
  int64_t workspace = 0;  ///< bytes
  int64_t engine = -1;    ///< cuDNN's number of the algorithm
};
/// Up to `most` plans for the graph, by cuDNN's heuristics the fastest first; only such as keep to
/// what `conv` allows and need at most `workspace` bytes. Empty if there is none.
std::vector<DnnPlan> make_plans(const DnnGraph& graph, const DnnConv& conv, const DnnTarget& target,
                                int64_t workspace, size_t most);

}  // namespace tarn::cuda
