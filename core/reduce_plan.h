// reduce_plan.h - how a reduction walks its input: kept and reduced dimensions, sorted and merged.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

struct ReducePlan {
  int kept = 0;     ///< dimensions that remain, [0] the fastest in x
  int reduced = 0;  ///< dimensions that go, [0] the fastest in x
  int64_t kept_size[kMaxDims], kept_stride[kMaxDims], out_stride[kMaxDims];
  int64_t reduced_size[kMaxDims], reduced_stride[kMaxDims];
  int64_t outputs = 1;  ///< product of kept_size
  int64_t count = 1;    ///< product of reduced_size
  /// True if the fastest dimension of x is kept and rows of it are worth folding as a whole.
  bool columns = false;

  /// Width of a row in columns mode.
  int64_t width() const { return kept_size[0]; }
};

/// out has x's rank; the dimensions where out has size 1 and x has not are reduced.
ReducePlan make_reduce_plan(const Tensor& x, const Tensor& out);

/// Offset of position `i` in a space of `dims` sizes ([0] the fastest), with these strides.
inline int64_t offset_at(int64_t i, int dims, const int64_t* sizes, const int64_t* strides) {
  int64_t offset = 0;
  for (int d = 0; d < dims; ++d) {
    offset += i % sizes[d] * strides[d];
    i /= sizes[d];
  }
  return offset;
}

}  // namespace tarn
