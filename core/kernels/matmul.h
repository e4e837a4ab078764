// matmul.h - slots for matrix products.
#pragma once

#include "tarn/core/tensor.h"

namespace tarn {

/// What is applied to a product before it is written.
enum class Epilogue : uint8_t { kNone, kRelu, kGelu, kGeluTanh };

struct MatmulKernels {
  /// out = epilogue(alpha * a @ b + beta * out + bias). a [B?, M, K], b [B?, K, N], out [B?, M, N]:
  /// all 2-d or all 3-d with equal B (a batch stride of 0 is allowed in a and b); one dtype
  /// (floating, or integral with alpha 1, beta 0 or 1). In a and b one of the last two strides is
  /// 1; out is dense in its last dimension. bias [N] dense, or undefined. Accumulates in f32 (f64
  /// for f64). K = 0 gives beta * out + bias.
  void (*matmul)(const Tensor& a, const Tensor& b, const Tensor& bias, double alpha, double beta,
                 Epilogue epilogue, const Tensor& out, Stream stream) = nullptr;
  /// out = a @ b for matrices of halves, as above, and out in f32: not rounded. May be null.
  void (*matmul_wide)(const Tensor& a, const Tensor& b, const Tensor& out, Stream stream) = nullptr;
};

}  // namespace tarn
