// reduce_ops.h - folds adjacent elements in vectors with the operations of core/reduce_ops.h.
#pragma once

#include "tarn/core/cpu/vec.h"
#include "tarn/core/reduce_ops.h"

namespace tarn::cpu {

/// Folds n adjacent elements: in four groups of 64 bytes, however wide a vector is, so that sums
/// are as accurate (and their bits the same) with narrow ones.
template <class Op, class T>
typename Op::Wide fold_chunk(const Op& op, const T* x, int64_t n) {
  using A = typename Op::Lane;
  using V = Vec<A>;
  constexpr int L = kLanes<A>, kPieces = 64 / kVectorBytes, kGroup = L * kPieces;
  A rest = op.init();
  int64_t i = 0;
  if (n >= kGroup) {
    V sums[4][kPieces];
    for (auto& group : sums) {
      for (V& v : group) v = broadcast(op.init());
    }
    const auto take = [&](V(&group)[kPieces], int64_t at) {
      for (int p = 0; p < kPieces; ++p) group[p] = op.step(group[p], load<A>(x + at + p * L));
    };
    for (; i + 4 * kGroup <= n; i += 4 * kGroup) {
      for (int g = 0; g < 4; ++g) take(sums[g], i + g * kGroup);
    }
    for (; i + kGroup <= n; i += kGroup) take(sums[0], i);
    for (int p = 0; p < kPieces; ++p) {
      sums[0][p] = op.join(op.join(sums[0][p], sums[1][p]), op.join(sums[2][p], sums[3][p]));
    }
    for (int width = kPieces / 2; width > 0; width /= 2) {
      for (int p = 0; p < width; ++p) sums[0][p] = op.join(sums[0][p], sums[0][p + width]);
    }
    rest = fold_lanes(sums[0][0], [&op](A p, A q) { return op.join(p, q); });
  }
  for (; i < n; ++i) rest = op.step(rest, to<A>(x[i]));
  return static_cast<typename Op::Wide>(rest);
}

}  // namespace tarn::cpu
