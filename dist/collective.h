// collective.h - one collective as data: what a ProcessGroup hands to its transport.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tarn/core/tensor.h"

namespace tarn::dist {

/// How values of several ranks become one. Halves are accumulated in f32 and rounded once; integers
/// wrap; kMin and kMax propagate NaN. On bool, sum is "any" and product is "all".
enum class ReduceOp : uint8_t { kSum, kAvg, kMin, kMax, kProduct, kBitAnd, kBitOr };

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kReceive,
};

const char* op_name(ReduceOp op);
const char* kind_name(CollectiveKind kind);

/// Checked by ProcessGroup: a transport may trust it. W is the size of the group.
///   all_reduce, reduce, broadcast  inputs: n tensors, changed in place; outputs: none
///   all_gather                     inputs: n; outputs: n * W, tensor i of rank r at i * W + r
///   reduce_scatter                 inputs: n * W, laid out like that; outputs: n
///   all_to_all                     inputs: W; outputs: W
///   gather, scatter                root has W outputs (inputs), everyone one input (output)
///   send, receive                  one input (output); root is the other rank
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;
  uint32_t tag = 0;
  bool lost = false;  // it counts, but nothing is sent or received: TARN_FAULT's drop
  std::vector<Tensor> inputs = {};
  std::vector<Tensor> outputs = {};

  bool reduces() const {
    return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
           kind == CollectiveKind::kReduceScatter;
  }
  /// Bytes of the tensors this rank gives (or gets, where it gives none).
  int64_t bytes() const;
  /// "[1024] f32, sum", "3 tensors (4096 bytes), root 0".
  std::string describe() const;
};

}  // namespace tarn::dist
