// reduce.h - the kernels of the reduce family that stand in other files than reduce.cpp.
#pragma once

#include "tarn/core/kernels/reduce.h"

namespace tarn::cpu {

/// The norms of ReduceOp: kNorm0 and after.
void reduce_norm(ReduceOp op, const Tensor& x, double p, const Tensor& out);
void var_mean(const Tensor& x, double correction, const Tensor& var, const Tensor& mean,
              Stream stream);
void arg_reduce(bool largest, const Tensor& x, int64_t dim, const Tensor& values,
                const Tensor& index, Stream stream);
void cumulative(bool product, const Tensor& x, int64_t dim, const Tensor& out, Stream stream);
void topk(const Tensor& x, int64_t k, int64_t dim, bool largest, const Tensor& values,
          const Tensor& index, Stream stream);

}  // namespace tarn::cpu
