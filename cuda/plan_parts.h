// plan_parts.h - cuts walks that need more than 31 bits into parts that kernels index with 32.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tarn/core/plan.h"

namespace tarn::cuda {

/// What a part stays below: elements, and the largest offset of any operand in elements.
inline constexpr int64_t kIndexLimit = int64_t{1} << 31;

namespace detail {
/// How far operand steps reach along one dimension, at most over all operands.
inline int64_t reach_of(const ElementwisePlan& plan, int dim) {
  int64_t most = plan.sizes[dim] - 1;
  for (int o = 0; o < plan.operands; ++o) {
    most = std::max(most, (plan.sizes[dim] - 1) * plan.strides[o][dim]);
  }
  return most;
}

inline bool fits(const ElementwisePlan& plan, int64_t limit) {
  if (plan.numel > limit) return false;
  for (int o = 0; o < plan.operands; ++o) {
    int64_t last = 0;
    for (int d = 0; d < plan.ndim; ++d) last += (plan.sizes[d] - 1) * plan.strides[o][d];
    if (last >= limit) return false;
  }
  return true;
}

/// `plan` with dimension `dim` cut to `length` elements from `start`.
inline ElementwisePlan cut(const ElementwisePlan& plan, int dim, int64_t start, int64_t length) {
  ElementwisePlan part = plan;
  part.numel = plan.numel / plan.sizes[dim] * length;
  part.sizes[dim] = length;
  for (int o = 0; o < plan.operands; ++o) {
    part.data[o] =
        static_cast<char*>(plan.data[o]) + start * plan.strides[o][dim] * item_size(plan.dtype[o]);
  }
  return part;
}
}  // namespace detail

/// Calls f(part) for parts that cover the plan once: the plan itself if it is small enough, else
/// the parts of its halves, cut where an operand reaches furthest. Cuts of long dimensions are
/// multiples of 64 elements, so that aligned operands stay aligned.
template <class F>
void for_each_part(const ElementwisePlan& plan, F&& f, int64_t limit = kIndexLimit) {
  if (plan.numel == 0) return;
  if (detail::fits(plan, limit)) {
    f(plan);
    return;
  }
  int longest = -1;
  for (int d = 0; d < plan.ndim; ++d) {
    if (plan.sizes[d] == 1) continue;
    if (longest < 0 || detail::reach_of(plan, d) > detail::reach_of(plan, longest)) longest = d;
  }
  const int64_t size = plan.sizes[longest];
  const int64_t half = size >= 128 ? size / 2 / 64 * 64 : size / 2;
  for_each_part(detail::cut(plan, longest, 0, half), f, limit);
  for_each_part(detail::cut(plan, longest, half, size - half), f, limit);
}

}  // namespace tarn::cuda
