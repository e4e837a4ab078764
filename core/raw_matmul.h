// raw_matmul.h - tarn::raw: matrix products, unrecorded.
#pragma once

#include "tarn/core/kernels/matmul.h"
#include "tarn/core/tensor.h"

namespace tarn::raw {

/// torch.matmul: dot, matrix-vector, matrix-matrix, batched with broadcast batch dimensions.
Tensor matmul(const Tensor& a, const Tensor& b);
/// a @ b of two matrices, in dtype: that of both sides, or, of halves, f32 without a rounding in
/// between (on a GPU with one).
Tensor matmul(const Tensor& a, const Tensor& b, DType dtype);
/// alpha * a @ b + beta * c, for matrices; c broadcasts to [M, N].
Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha);
/// epilogue(x @ weight.t() + bias): x [..., K], weight [N, K], bias [N] or undefined -> [..., N].
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              Epilogue epilogue = Epilogue::kNone);
/// Messages of matmul's and linear's shape errors, in the caller's terms; called before any
/// reshape.
void check_matmul(const char* op, const Tensor& a, const Tensor& b);

}  // namespace tarn::raw
