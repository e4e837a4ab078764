// reduce.h - the kernels of the reduce family, file by file.
#pragma once

#include "tarn/core/kernels/reduce.h"

namespace tarn::cuda {

/// Sum, mean, prod, max, min, any, all of floating elements.
void reduce_float(ReduceOp op, const Tensor& x, const Tensor& out, Stream stream);
/// The same, but mean, of integers and bool.
void reduce_integer(ReduceOp op, const Tensor& x, const Tensor& out, Stream stream);
/// kNorm0 and after, of floating elements.
void reduce_norm(ReduceOp op, const Tensor& x, double p, const Tensor& out, Stream stream);
void var_mean(const Tensor& x, double correction, const Tensor& var, const Tensor& mean,
              Stream stream);
void arg_reduce(bool largest, const Tensor& x, int64_t dim, const Tensor& values,
                const Tensor& index, Stream stream);
void cumulative(bool product, const Tensor& x, int64_t dim, const Tensor& out, Stream stream);
void topk(const Tensor& x, int64_t k, int64_t dim, bool largest, const Tensor& values,
          const Tensor& index, Stream stream);

}  // namespace tarn::cuda
