// reduce_ops.h - folds adjacent elements in vectors with the operations of core/reduce_ops.h.
#pragma once

#include "tarn/core/cpu/vec.h"
#include "tarn/core/reduce_ops.h"

namespace tarn::cpu {

/// Folds n adjacent elements.
template <class Op, class T>
typename Op::Wide fold_chunk(const Op& op, const T* x, int64_t n) {
  using A = typename Op::Lane;
  using V = Vec<A>;
  constexpr int L = kLanes<A>;
  A rest = op.init();
  int64_t i = 0;
  if (n >= L) {
    V a = broadcast(op.init()), b = a, c = a, d = a;
    for (; i + 4 * L <= n; i += 4 * L) {
      a = op.step(a, load<A>(x + i));
      b = op.step(b, load<A>(x + i + L));
      c = op.step(c, load<A>(x + i + 2 * L));
      d = op.step(d, load<A>(x + i + 3 * L));
    }
    for (; i + L <= n; i += L) a = op.step(a, load<A>(x + i));
    a = op.join(op.join(a, b), op.join(c, d));
    rest = fold_lanes<A>(a, [&op](A p, A q) { return op.join(p, q); });
  }
  for (; i < n; ++i) rest = op.step(rest, to<A>(x[i]));
  return static_cast<typename Op::Wide>(rest);
}

}  // namespace tarn::cpu
