// raw_linalg.h - tarn::raw: dense linear algebra, unrecorded. Computed on the CPU: tensors of
// another device are copied there, and the results back.
#pragma once

#include <tuple>
#include <utility>

#include "tarn/core/kernels/linalg.h"
#include "tarn/core/tensor.h"

namespace tarn::raw {

/// What each gives, takes and refuses is said in autograd/functions_linalg.h.
Tensor cholesky(const Tensor& a);
Tensor inv(const Tensor& a);
Tensor det(const Tensor& a);
std::pair<Tensor, Tensor> slogdet(const Tensor& a);
std::pair<Tensor, Tensor> qr(const Tensor& a);
std::pair<Tensor, Tensor> eigh(const Tensor& a);
std::tuple<Tensor, Tensor, Tensor> svd(const Tensor& a);

/// Whether b is a vector, or a batch of such, to solve's rule.
bool is_vector_for(const Tensor& a, const Tensor& b);
/// Checks solve's operands, in the caller's terms; returns the sizes of their common batch.
Shape check_solve(const Tensor& a, const Tensor& b);
/// a [.., N, N], b [.., N, K] of one batch, checked.
Tensor solve(const Tensor& a, const Tensor& b);

}  // namespace tarn::raw
