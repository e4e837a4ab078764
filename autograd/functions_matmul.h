// functions_matmul.h - matrix products and convolutions, recorded.
#pragma once

#include "tarn/core/kernels/conv.h"
#include "tarn/core/kernels/matmul.h"
#include "tarn/core/tensor.h"

namespace tarn {

/// a @ b as torch.matmul: 1-d with 1-d is a dot product, 1-d with a matrix a vector product, and
/// leading dimensions broadcast: [..., M, K] @ [..., K, N] -> [..., M, N]. Halves accumulate in
/// f32. Throws ShapeError if the inner sizes differ, DTypeError if the dtypes do.
Tensor matmul(const Tensor& a, const Tensor& b);
/// Matrices only: [M, K] @ [K, N].
Tensor mm(const Tensor& a, const Tensor& b);
/// Equal batches only: [B, M, K] @ [B, K, N].
Tensor bmm(const Tensor& a, const Tensor& b);
/// beta * c + alpha * a @ b for matrices; c broadcasts to the product. beta = 0 ignores c, NaN and
/// all.
Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta = 1, double alpha = 1);
/// x @ weight.t() + bias. x [..., K], weight [N, K], bias [N] or none -> [..., N].
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
/// gelu(linear(x, weight, bias)). Where nothing is recorded it is applied to the product while that
/// is in registers; a recorded one needs the product for its gradient, and keeps it.
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                   bool tanh_approximation = false);

/// Two-dimensional cross-correlation, as torch.nn.functional.conv2d.
/// x [N, C, H, W] or [C, H, W], weight [K, C/groups, R, S], bias [K] or none -> [N, K, OH, OW],
/// OH = floor((H + 2 pad - dilation (R - 1) - 1) / stride) + 1. The result is channels_last.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});
/// x [N, C, L] or [C, L], weight [K, C/groups, S]; uses the _w fields of the options.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});
/// The transpose of conv2d: weight [C, K/groups, R, S], OH = (H - 1) stride - 2 pad +
/// dilation (R - 1) + output_padding + 1.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const Conv2dOptions& options = {}, int64_t output_padding_h = 0,
                        int64_t output_padding_w = 0);
/// The transpose of conv1d: x [N, C, L] or [C, L], weight [C, K/groups, S].
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const Conv2dOptions& options = {}, int64_t output_padding = 0);

}  // namespace tarn
