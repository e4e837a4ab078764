// raw_reduce.h - tarn::raw: reductions, scans and selections along dimensions, unrecorded.
//
// An empty list of dimensions means all of them. Messages speak of `op`, so one entry serves
// several operations (sum, mean, norm ...).
#pragma once

#include <optional>
#include <utility>

#include "tarn/core/kernels/reduce.h"
#include "tarn/core/tensor.h"

namespace tarn::raw {

/// Wrapped to [0, ndim), all dimensions if the list is empty. Throws IndexError, or ValueError on a
/// dimension that is listed twice.
Shape reduce_dims(const char* op, const Shape& dims, int ndim);
/// x's sizes with 1 in the (wrapped) dims.
Shape reduced_sizes(const Shape& sizes, const Shape& dims);
/// A result with sizes of 1 in `dims`, without those dimensions unless keepdim.
Tensor drop_dims(const Tensor& kept, const Shape& dims, bool keepdim);

/// op over dims into `dtype`: x's dtype, f32 for halves, i64 for integers, bool for any and all.
/// Throws IndexError where max or min would have nothing to choose from.
Tensor reduce(const char* op, ReduceOp kind, const Tensor& x, const Shape& dims, bool keepdim,
              DType dtype, double p = 2);
/// Variance and mean, of x's dtype or the floating one given; a result that is not wanted comes
/// back undefined.
std::pair<Tensor, Tensor> var_mean(const char* op, const Tensor& x, const Shape& dims,
                                   double correction, bool keepdim, bool want_var, bool want_mean,
                                   std::optional<DType> dtype = {});
/// Values and indices of the first maximum or minimum along dim (over all elements if none is
/// given; dim counts in the flattened tensor then).
std::pair<Tensor, Tensor> arg_reduce(const char* op, bool largest, const Tensor& x,
                                     std::optional<int64_t> dim, bool keepdim, bool want_values);
/// Running sum or product along dim; integers give i64.
Tensor cumulative(const char* op, bool product, const Tensor& x, int64_t dim);
/// The k first along dim in sorted order, and where they stood.
std::pair<Tensor, Tensor> topk(const char* op, const Tensor& x, int64_t k, int64_t dim,
                               bool largest);

}  // namespace tarn::raw
