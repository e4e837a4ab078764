// raw_reduce.cpp - checks and allocation for reductions, scans and selections.
#include "tarn/core/raw_reduce.h"

#include "tarn/core/factory.h"
#include "tarn/core/kernel_call.h"
#include "tarn/core/op_scope.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::raw {
namespace {

void check_choice(const char* op, const Tensor& x, const Shape& dims) {
  for (int64_t d : dims) {
    TARN_CHECK_AS(IndexError, x.sizes()[d] > 0, op,
                  ": there must be something to choose from; got x=", x.describe(),
                  ", of size 0 in dimension ", d);
  }
}

}  // namespace

Shape reduce_dims(const char* op, const Shape& dims, int ndim) {
  Shape all;
  if (ndim == 0) {
    for (int64_t d : dims) wrap_dim(op, d, 0);
    return all;
  }
  bool seen[kMaxDims] = {};
  for (int64_t d : dims) {
    const int at = wrap_dim(op, d, ndim);
    TARN_CHECK_AS(ValueError, !seen[at], op,
                  ": a dimension may be listed only once; got dims=", dims, " (", at, " twice)");
    seen[at] = true;
  }
  for (int d = 0; d < ndim; ++d) {
    if (seen[d] || dims.empty()) all.push_back(d);
  }
  return all;
}

Shape reduced_sizes(const Shape& sizes, const Shape& dims) {
  Shape kept = sizes;
  for (int64_t d : dims) kept[static_cast<int>(d)] = 1;
  return kept;
}

Tensor drop_dims(const Tensor& kept, const Shape& dims, bool keepdim) {
  if (keepdim || dims.empty()) return kept;
  Shape sizes, strides;
  for (int d = 0; d < kept.dim(); ++d) {
    if (dims.contains(d)) continue;
    sizes.push_back(kept.sizes()[d]);
    strides.push_back(kept.strides()[d]);
  }
  return Tensor(kept.storage(), sizes, strides, kept.storage_offset(), kept.dtype());
}

Tensor reduce(const char* op, ReduceOp kind, const Tensor& x, const Shape& dims, bool keepdim,
              DType dtype, double p) {
  const OpScope scope(op);
  check_defined(op, "x", x);
  const Shape over = reduce_dims(op, dims, x.dim());
  if (kind == ReduceOp::kMax || kind == ReduceOp::kMin) check_choice(op, x, over);
  Tensor out = empty(reduced_sizes(x.sizes(), over), {.dtype = dtype, .device = x.device()});
  if (out.numel() > 0) TARN_KERNEL(reduce, reduce, x.device(), kind, x, p, out);
  return drop_dims(out, over, keepdim);
}

std::pair<Tensor, Tensor> var_mean(const char* op, const Tensor& x, const Shape& dims,
                                   double correction, bool keepdim, bool want_var, bool want_mean,
                                   std::optional<DType> dtype) {
  const OpScope scope(op);
  check_defined(op, "x", x);
  TARN_CHECK_AS(DTypeError, is_floating(x.dtype()), op,
                ": x must be floating; got x=", x.describe());
  const Shape over = reduce_dims(op, dims, x.dim());
  const Shape sizes = reduced_sizes(x.sizes(), over);
  const TensorOptions options{.dtype = dtype.value_or(x.dtype()), .device = x.device()};
  Tensor var, mean;
  if (want_var) var = empty(sizes, options);
  if (want_mean) mean = empty(sizes, options);
  if (sizes.numel() > 0) TARN_KERNEL(reduce, var_mean, x.device(), x, correction, var, mean);
  if (want_var) var = drop_dims(var, over, keepdim);
  if (want_mean) mean = drop_dims(mean, over, keepdim);
  return {var, mean};
}

std::pair<Tensor, Tensor> arg_reduce(const char* op, bool largest, const Tensor& x,
                                     std::optional<int64_t> dim, bool keepdim, bool want_values) {
  const OpScope scope(op);
  check_defined(op, "x", x);
  if (!dim) {
    TARN_CHECK_AS(IndexError, x.numel() > 0, op,
                  ": there must be something to choose from; got x=", x.describe());
    auto [values, index] =
        arg_reduce(op, largest, raw::reshape(x, {x.numel()}), 0, false, want_values);
    if (keepdim) index = raw::view(index, Shape::filled(x.dim(), 1));
    return {values, index};
  }
  const int at = wrap_dim(op, *dim, x.dim());
  const Tensor in = contiguous(x.dim() == 0 ? raw::unsqueeze(x, 0) : x);
  check_choice(op, in, {at});
  const Shape sizes = reduced_sizes(in.sizes(), {at});
  Tensor index = empty(sizes, {.dtype = DType::kI64, .device = x.device()}), values;
  if (want_values) values = empty(sizes, {.dtype = x.dtype(), .device = x.device()});
  if (index.numel() > 0) {
    TARN_KERNEL(reduce, arg_reduce, x.device(), largest, in, int64_t{at}, values, index);
  }
  const bool keep = keepdim && x.dim() > 0;
  if (want_values) values = drop_dims(values, {at}, keep);
  return {values, drop_dims(index, {at}, keep)};
}

Tensor cumulative(const char* op, bool product, const Tensor& x, int64_t dim) {
  const OpScope scope(op);
  check_defined(op, "x", x);
  const int at = wrap_dim(op, dim, x.dim());
  const DType dtype = is_floating(x.dtype()) ? x.dtype() : DType::kI64;
  const Tensor in = contiguous(x.dim() == 0 ? raw::unsqueeze(x, 0) : x);
  Tensor out = empty(in.sizes(), {.dtype = dtype, .device = x.device()});
  if (out.numel() > 0) {
    TARN_KERNEL(reduce, cumulative, x.device(), product, in, int64_t{at}, out);
  }
  return x.dim() == 0 ? raw::view(out, {}) : out;
}

std::pair<Tensor, Tensor> topk(const char* op, const Tensor& x, int64_t k, int64_t dim,
                               bool largest) {
  const OpScope scope(op);
  check_defined(op, "x", x);
  const int at = wrap_dim(op, dim, x.dim());
  const Tensor in = contiguous(x.dim() == 0 ? raw::unsqueeze(x, 0) : x);
  TARN_CHECK_AS(ValueError, k >= 0 && k <= in.sizes()[at], op,
                ": k must be in [0, size of the dimension]; got k=", k, ", x=", x.describe(),
                ", dim=", dim);
  Shape sizes = in.sizes();
  sizes[at] = k;
  Tensor values = empty(sizes, {.dtype = x.dtype(), .device = x.device()});
  Tensor index = empty(sizes, {.dtype = DType::kI64, .device = x.device()});
  if (index.numel() > 0) {
    TARN_KERNEL(reduce, topk, x.device(), in, k, int64_t{at}, largest, values, index);
  }
  if (x.dim() > 0) return {values, index};
  const Shape scalar = k == 1 ? Shape() : Shape{k};
  return {raw::view(values, scalar), raw::view(index, scalar)};
}

}  // namespace tarn::raw
