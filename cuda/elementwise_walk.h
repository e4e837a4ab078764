// elementwise_walk.h - the host's part of the elementwise kernels: how a plan is walked.
#pragma once

#include <algorithm>

#include "tarn/core/plan.h"
#include "tarn/cuda/elementwise.cuh"
#include "tarn/cuda/launch.h"
#include "tarn/cuda/plan_parts.h"

namespace tarn::cuda {
namespace detail {

/// Elements until all operands that move along dimension 0 are aligned to their vectors of `width`
/// elements; -1 if they never are at once.
template <int N>
int64_t elements_to_alignment(const ElementwisePlan& plan, int width) {
  int64_t head = -1;
  for (int o = 0; o < N; ++o) {
    if (plan.strides[o][0] == 0) continue;
    const auto size = static_cast<uintptr_t>(item_size(plan.dtype[o]));
    const auto address = reinterpret_cast<uintptr_t>(plan.data[o]);
    const auto first = static_cast<int64_t>((width - address / size % width) % width);
    if (head >= 0 && head != first) return -1;
    head = first;
  }
  return head;
}

/// True if every vector of `width` elements lies in one row and is as aligned as its operand.
template <int N>
bool rows_are_vectors(const ElementwisePlan& plan, int width) {
  if (plan.sizes[0] % width != 0) return false;
  for (int o = 0; o < N; ++o) {
    if (plan.strides[o][0] == 0) continue;
    for (int d = 1; d < plan.ndim; ++d) {
      if (plan.strides[o][d] % width != 0) return false;
    }
  }
  return true;
}

/// How much of a plan can be walked by vectors: from element `head`, `vectors` of them.
struct WideShare {
  int64_t head = 0;
  int64_t vectors = 0;
};
template <int N>
WideShare wide_share(const ElementwisePlan& plan, int width) {
  if (plan.strides[0][0] != 1) return {};
  for (int o = 1; o < N; ++o) {
    if (plan.strides[o][0] != 0 && plan.strides[o][0] != 1) return {};
  }
  const int64_t head = elements_to_alignment<N>(plan, width);
  if (head < 0) return {};
  if (plan.ndim > 1) {
    if (head > 0 || !rows_are_vectors<N>(plan, width)) return {};
    return {0, plan.numel / width};
  }
  if (plan.numel < head + width) return {};
  return {head, (plan.numel - head) / width};
}

template <int N>
StridedWalk<N> make_steps(const ElementwisePlan& plan) {
  StridedWalk<N> steps;
  steps.ndim = plan.ndim;
  for (int d = 0; d < plan.ndim; ++d) {
    if (d + 1 < plan.ndim) steps.sizes[d] = FastDivisor(static_cast<uint32_t>(plan.sizes[d]));
    for (int o = 0; o < N; ++o) steps.strides[d][o] = static_cast<uint32_t>(plan.strides[o][d]);
  }
  return steps;
}

/// The walk over a plan that 32 bits can index, by vectors where that is possible and allowed.
template <int N>
ElementwiseWalk<N> make_walk(const ElementwisePlan& plan, bool allow_wide = true) {
  int64_t widest = 1;
  for (int o = 0; o < N; ++o) widest = std::max(widest, item_size(plan.dtype[o]));
  const int width = vector_width(widest), elements = elements_per_thread(widest);
  const WideShare wide = allow_wide ? wide_share<N>(plan, width) : WideShare{};
  const int64_t rest = plan.numel - wide.vectors * width;
  ElementwiseWalk<N> walk;
  for (int o = 0; o < N; ++o) walk.data[o] = plan.data[o];
  walk.steps = make_steps<N>(plan);
  walk.head = static_cast<uint32_t>(wide.head);
  walk.vectors = static_cast<uint32_t>(wide.vectors);
  walk.rest = static_cast<uint32_t>(rest);
  const int64_t tile = int64_t{kElementwiseThreads} * elements;
  const int64_t wide_tiles = ceil_div(wide.vectors * width, tile);
  walk.wide_tiles = static_cast<uint32_t>(wide_tiles);
  walk.tiles = static_cast<uint32_t>(wide_tiles + ceil_div(rest, tile));
  return walk;
}

}  // namespace detail

/// Calls f(TypeTag<U>) with the unsigned type of a dtype's size, for kernels that only move bits.
template <class F>
auto visit_bits(DType dtype, F&& f) {
  switch (item_size(dtype)) {
    case 1:
      return f(TypeTag<uint8_t>{});
    case 2:
      return f(TypeTag<uint16_t>{});
    case 4:
      return f(TypeTag<uint32_t>{});
    default:
      return f(TypeTag<uint64_t>{});
  }
}

/// Runs a kernel over a plan's first N operands, in several launches if 32 bits cannot index it.
template <int N>
void run_elementwise(ElementwiseKernel<N> kernel, const ElementwisePlan& plan, const Scalars& s,
                     Stream stream) {
  for_each_part(plan, [&](const ElementwisePlan& part) {
    const ElementwiseWalk<N> walk = detail::make_walk<N>(part);
    launch(kernel, blocks_for(walk.tiles, 1, stream), kElementwiseThreads, 0, stream, walk, s);
  });
}

}  // namespace tarn::cuda
