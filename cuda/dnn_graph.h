// dnn_graph.h - convolutions as cuDNN operation graphs.
#pragma once

#include <compare>

#include "tarn/cuda/conv_shape.h"
#include "tarn/cuda/dnn_plan.h"

namespace tarn::cuda {

enum class ConvPass : uint8_t { kForward, kBackwardData, kBackwardWeight };

/// What a plan is made for. Images are dense [N, H, W, C], filters dense [K, R, S, CG].
struct DnnConv {
  static constexpr const char* kOperation = "conv2d";
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
  DnnNumerics numerics() const {
    return {.dtype = dtype, .tf32 = tf32, .deterministic = deterministic};
  }
};

/// Names of the operands in a graph and its variant pack.
enum DnnOperand : int64_t { kDnnX = 1, kDnnWeight, kDnnY, kDnnBias, kDnnSum };

/// Throws DnnError if cuDNN does not accept it.
DnnGraph make_graph(const DnnConv& conv, const DnnTarget& target);

}  // namespace tarn::cuda
