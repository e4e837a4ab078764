// dnn_attention_graph.h - attention as cuDNN operation graphs.
#pragma once

#include <compare>
#include <string>

#include "tarn/cuda/dnn_plan.h"

namespace tarn::cuda {

enum class AttentionPass : uint8_t { kForward, kBackward };

/// Steps in elements between batches, heads and rows of an operand [B, heads, rows, width].
struct DnnHeads {
  int64_t batch = 0, head = 0, row = 0;

  auto operator<=>(const DnnHeads&) const = default;
};

/// What a plan is made for: q [B, H, T, D], k [B, G, S, D], v [B, G, S, E], out [B, H, T, E],
/// aligned to 16 bytes, and log-sum-exps [B, H, T], dense, f32. Backward also gout and gq, gk, gv.
struct DnnAttention {
  static constexpr const char* kOperation = "scaled_dot_product_attention";

  AttentionPass pass = AttentionPass::kForward;
  DType dtype = DType::kF16;  ///< f16 or bf16; sums in f32, probabilities rounded to this
  bool causal = false;        ///< query t attends to keys s <= t only
  /// The same bits on every run: backward then keeps the gradients of the scores in its workspace,
  /// 2 B H T S bytes, instead of adding to gq in any order.
  bool deterministic = true;
  int device = 0;
  int64_t batch = 1, heads = 1, groups = 1, queries = 1, keys = 1, depth = 8, width = 8;
  DnnHeads q{}, k{}, v{}, out{};
  DnnHeads gout{}, gq{}, gk{}, gv{};  ///< backward

  auto operator<=>(const DnnAttention&) const = default;
  /// "forward, bf16, q=[2, 8, 256, 64], k=[...], v=[...], causal on cuda:0".
  std::string describe() const;
  DnnNumerics numerics() const { return {.dtype = dtype, .deterministic = deterministic}; }
};

/// Names of the operands in a graph and its variant pack. Scalars are f32 in host memory, read when
/// the plan is queued.
enum DnnAttentionOperand : int64_t {
  kDnnQuery = 1,
  kDnnKey,
  kDnnValue,
  kDnnOut,
  kDnnLogSumExp,
  kDnnScale,          ///< scalar
  kDnnMinusInfinity,  ///< scalar, if causal
  kDnnOutGradient,    ///< this and all below: backward
  kDnnOne,            ///< scalar
  kDnnDelta,          ///< [B, H, T] f32, dense: sum(gout * out), for the graph alone
  kDnnQuerySums,      ///< [B, H, T, D] f32, dense, for the graph alone; unless deterministic.
                      ///< cuDNN clears it itself, since 9.6
  kDnnQueryGradient,
  kDnnKeyGradient,
  kDnnValueGradient,
  kDnnHidden  ///< this and all above it live inside the graph
};

/// Throws DnnError if cuDNN does not accept it.
DnnGraph make_graph(const DnnAttention& attention, const DnnTarget& target);

}  // namespace tarn::cuda
