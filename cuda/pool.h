// pool.h - the two files of the pooling kernels.
#pragma once

#include "tarn/core/kernels/pool.h"

namespace tarn::cuda {

void avg_pool2d(const Tensor& x, const Pool2dOptions& options, const Tensor& y, Stream stream);
void avg_pool2d_backward(const Tensor& gy, const Pool2dOptions& options, const Tensor& gx,
                         Stream stream);

}  // namespace tarn::cuda
