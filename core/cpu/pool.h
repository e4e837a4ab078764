// pool.h - the pooling kernels that stand in other files than pool.cpp.
#pragma once

#include "tarn/core/kernels/pool.h"

namespace tarn::cpu {

void avg_pool2d(const Tensor& x, const Pool2dOptions& options, const Tensor& y, Stream stream);
void avg_pool2d_backward(const Tensor& gy, const Pool2dOptions& options, const Tensor& gx,
                         Stream stream);

}  // namespace tarn::cpu
