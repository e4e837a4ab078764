// plan.h - how an elementwise kernel walks its operands.
//
// raw_* functions build a plan from tensors: broadcast, then dimensions sorted so that dimension 0
// is the fastest, then merged where every operand allows it. Most calls end as one dense dimension.
// Kernels read nothing but the plan; the same plan serves the CPU loop and a CUDA kernel.
#pragma once

#include <initializer_list>

#include "tarn/core/tensor.h"

namespace tarn {

struct ElementwisePlan {
  static constexpr int kMaxOperands = 6;

  int64_t numel = 0;
  int ndim = 0;  ///< at least 1 when numel > 0
  int operands = 0;
  /// True if ndim == 1 and every operand has unit stride in it.
  bool dense = false;
  int64_t sizes[kMaxDims];                  ///< [0] is the innermost
  int64_t strides[kMaxOperands][kMaxDims];  ///< in elements of that operand; 0 where broadcast
  void* data[kMaxOperands];
  DType dtype[kMaxOperands];
};

/// Plans a walk over tensors that all broadcast to the sizes of operand 0, the first output.
/// Operands: outputs first, then inputs. The caller has checked shapes.
ElementwisePlan make_plan(std::initializer_list<const Tensor*> operands);

/// A new tensor for the result of an elementwise operation over `inputs`, whose broadcast is
/// `sizes`: dense, with dimensions in the order of the first input of full size (so channels_last
/// stays).
Tensor elementwise_output(const Shape& sizes, std::initializer_list<const Tensor*> inputs,
                          DType dtype);

/// True if two elements of x may share memory (an expanded tensor).
bool overlaps_itself(const Tensor& x);
/// Throws if writing to `out` is ambiguous: two of its elements share memory.
void check_no_internal_overlap(const char* op, const Tensor& out);
/// The same for the in-place form of `op`, which is named without its underscore.
void check_writable(const char* op, const Tensor& out);
/// True if out and x share memory without being the very same elements in the same order.
bool overlaps_partly(const Tensor& out, const Tensor& x);

}  // namespace tarn
