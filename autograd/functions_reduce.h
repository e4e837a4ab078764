// functions_reduce.h - reductions, running sums, sorting and softmax, recorded.
//
// `dims` lists the dimensions that go; empty means all of them. Each is dropped, or kept with size
// 1 if keepdim. Sums of halves accumulate in f32 and longer ones pairwise in f64; the order of a
// sum is fixed, so results do not depend on the number of threads.
#pragma once

#include <optional>
#include <utility>

#include "tarn/core/tensor.h"

namespace tarn {

/// Sum. Integers and bool give i64; `dtype` converts before summing.
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false,
           std::optional<DType> dtype = {});
/// Arithmetic mean of a floating x (or with a floating `dtype`); over nothing NaN.
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false,
            std::optional<DType> dtype = {});
/// Product. Integers and bool give i64. The gradient is right where elements are 0.
Tensor prod(const Tensor& x, const Shape& dims = {}, bool keepdim = false,
            std::optional<DType> dtype = {});
/// Maximum and minimum; NaN wins. Elements that tie share the gradient evenly.
/// Throws IndexError over a dimension of size 0.
Tensor amax(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
inline Tensor max(const Tensor& x) {
  return amax(x);
}
inline Tensor min(const Tensor& x) {
  return amin(x);
}
/// {values, indices} of the first maximum (minimum) along dim, to which the gradient goes.
std::pair<Tensor, Tensor> max(const Tensor& x, int64_t dim, bool keepdim = false);
std::pair<Tensor, Tensor> min(const Tensor& x, int64_t dim, bool keepdim = false);
/// True where any (all) elements are not zero; NaN is not zero.
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Index (i64) of the first maximum (minimum) along dim; without dim, in the flattened tensor.
Tensor argmax(const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<int64_t> dim = {}, bool keepdim = false);

/// Variance: sum (x - mean)^2 / (n - correction).
Tensor var(const Tensor& x, const Shape& dims = {}, double correction = 1, bool keepdim = false);
/// Standard deviation (torch.std); the gradient is 0 where it is 0.
Tensor stddev(const Tensor& x, const Shape& dims = {}, double correction = 1, bool keepdim = false);
/// {variance, mean}.
std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Shape& dims = {}, double correction = 1,
                                   bool keepdim = false);
/// Vector norm (sum |x|^p)^(1/p); p = 0 counts what is not zero, p = +-inf is max (min) |x|.
/// Squares are summed in f64, so they do not overflow. The gradient at 0 is 0.
Tensor norm(const Tensor& x, double p = 2, const Shape& dims = {}, bool keepdim = false);
/// log(sum(exp(x))), stable for large x.
Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim = false);

/// Running sum and product along dim, inclusive. Integers and bool give i64.
Tensor cumsum(const Tensor& x, int64_t dim, std::optional<DType> dtype = {});
Tensor cumprod(const Tensor& x, int64_t dim, std::optional<DType> dtype = {});

/// {values, indices} in stable order along dim; NaN counts as the largest.
std::pair<Tensor, Tensor> sort(const Tensor& x, int64_t dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, int64_t dim = -1, bool descending = false);
/// {values, indices} of the k largest (or smallest) along dim, in order.
std::pair<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true);

/// exp(x_i) / sum_j exp(x_j) along dim, and its logarithm x - max - log(sum(exp(x - max))). `dtype`
/// converts x first (integers need one).
Tensor softmax(const Tensor& x, int64_t dim, std::optional<DType> dtype = {});
Tensor log_softmax(const Tensor& x, int64_t dim, std::optional<DType> dtype = {});

}  // namespace tarn
